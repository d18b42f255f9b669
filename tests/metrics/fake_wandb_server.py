"""Stand in for wandb's server, which does not run here: keep the rows and the summary that wandb's client sends."""

import gzip
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class FakeWandbServer(http.server.ThreadingHTTPServer):
    """Hold one run: what has arrived of it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.rows: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.exists = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing about clients that hang up."""

    def answer(self, query: dict[str, Any]) -> dict[str, Any]:
        """Answer a GraphQL query as far as wandb's client needs it."""
        project = {"id": "p", "name": "arl", "entity": {"id": "e", "name": "me"}}
        if "upsertBucket" in query["query"]:
            is_new = not self.exists
            self.exists = True
            bucket = self._bucket() | {"project": project, "sweepName": None, "description": None}
            return {"upsertBucket": {"bucket": bucket, "inserted": is_new}}
        if "CreateRunFiles" in query["query"]:
            names = query["variables"]["files"]
            files = [{"name": name, "uploadUrl": f"{self.url}/file"} for name in names]
            return {"createRunFiles": {"runID": "UnVu", "uploadHeaders": [], "files": files}}
        bucket = self._bucket() if self.exists else {}
        return {"model": project | {"bucket": bucket or None}, "serverInfo": None, "viewer": None}

    def _bucket(self) -> dict[str, Any]:
        last = [json.dumps(row) for row in self.rows[-1:]]
        return {
            "id": "UnVu",
            "name": "run",
            "displayName": "run",
            "config": "{}",
            "wandbConfig": json.dumps({"t": {"value": 1}}),
            "tags": [],
            "summaryMetrics": json.dumps(self.summary),
            "historyLineCount": len(self.rows),
            "logLineCount": 0,
            "eventsLineCount": 0,
            "historyTail": json.dumps(last),
            "eventsTail": "[]",
        }

    def receive(self, files: dict[str, Any]) -> None:
        """Take a piece of the stream of rows."""
        if history := files.get("wandb-history.jsonl"):
            at = history["offset"]
            self.rows[at : at + len(history["content"])] = [json.loads(line) for line in history["content"]]
        if summary := files.get("wandb-summary.json"):
            self.summary = json.loads(summary["content"][0])


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeWandbServer

    def do_GET(self) -> None:
        self._reply({})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path.startswith("/graphql"):
            self._reply({"data": self.server.answer(json.loads(body))})
        elif "file_stream" in self.path:
            self.server.receive(json.loads(body).get("files") or {})
            self._reply({"limits": {}})
        else:
            self._reply({})

    do_PUT = do_POST

    def _reply(self, answer: dict[str, Any]) -> None:
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextmanager
def fake_wandb_server() -> Iterator[FakeWandbServer]:
    with FakeWandbServer() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
