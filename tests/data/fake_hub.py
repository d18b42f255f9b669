"""A hub of data sets on loopback: it speaks as much of the Hugging Face hub's HTTP as huggingface_hub asks for."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from huggingface_hub import constants

SHA = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Answer requests until the block ends; yield the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


class FakeHub:
    """Holds one data set and counts what is fetched from it."""

    def __init__(self, repo: str, files: dict[str, bytes]) -> None:
        self.repo = repo
        self.files = files
        self.fetched: list[str] = []
        self.url = ""

    @contextmanager
    def serving(self) -> Iterator["FakeHub"]:
        """Answer requests until the block ends."""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                hub.answer(self, with_body=False)

            def do_GET(self) -> None:
                hub.answer(self, with_body=True)

            def log_message(self, format: str, *args: object) -> None:
                pass

        with served(Handler) as self.url:
            yield self

    def answer(self, request: BaseHTTPRequestHandler, with_body: bool) -> None:
        path = request.path.partition("?")[0]
        about = f"/api/datasets/{self.repo}"
        file = path.removeprefix(f"/datasets/{self.repo}/resolve/{SHA}/")
        if path in (about, f"{about}/revision/main"):
            self._send(request, json.dumps({"id": self.repo, "sha": SHA}).encode(), with_body)
        elif path == f"{about}/tree/{SHA}" or path == f"{about}/tree/main":
            self._send(request, json.dumps([self._entry(name) for name in self.files]).encode(), with_body)
        elif file in self.files:
            if with_body:
                self.fetched.append(file)
            self._send(request, self.files[file], with_body)
        else:
            request.send_response(404)
            request.send_header("Content-Length", "0")
            request.end_headers()

    def _entry(self, name: str) -> dict[str, object]:
        return {"type": "file", "path": name, "size": len(self.files[name]), "oid": _tag(self.files[name])}

    def _send(self, request: BaseHTTPRequestHandler, body: bytes, with_body: bool) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.send_header("ETag", f'"{_tag(body)}"')
        request.send_header("X-Repo-Commit", SHA)
        request.end_headers()
        if with_body:
            request.wfile.write(body)


def point_to(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let huggingface_hub ask this address."""
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")


def _tag(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()
