"""Serve the requests of Sandbox Fusion and of E2B's code interpreter on this machine, by plain processes."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from arl.config.sandbox_section import SandboxSection
from arl.sandbox.base import Program, Shell
from arl.sandbox.bubblewrap import BubblewrapSandbox

KEY = "key of the service"


class _Handler(BaseHTTPRequestHandler):
    plain: BubblewrapSandbox
    contexts: dict[str, Shell]
    asked: list[str]

    def do_POST(self) -> None:
        """Answer a request of either service."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(self.path)
        if not {f"Bearer {KEY}", KEY, "token"} & {
            self.headers.get(name) for name in ("Authorization", "X-API-Key", "X-Access-Token")
        }:
            self.send_error(401)
            return
        if self.path == "/run_code":
            assert body["language"] == "python"
            ran = self.plain.run(Program(code=body["code"], seconds=body["run_timeout"], memory_mb=8192))
            run_result = {"status": "Finished", "return_code": 0, "stdout": ran.stdout, "stderr": ran.stderr}
            self._answer({"status": "Success", "message": "", "run_result": run_result})
        elif self.path == "/sandboxes":
            assert body["templateID"] == "code-interpreter-v1"
            self._answer({"sandboxID": "s1", "envdAccessToken": "token"})
        elif self.path == "/contexts":
            name = f"c{len(self.contexts)}"
            self.contexts[name] = self.plain.shell(seconds=60, memory_mb=8192)
            self._answer({"id": name})
        else:
            assert (self.path, self.headers["E2b-Sandbox-Id"]) == ("/execute", "s1")
            ran = self.contexts[body["context_id"]].run(body["code"])
            events = [{"type": "stdout", "text": ran.stdout}, {"type": "stderr", "text": ""}]
            if ran.outcome != "done":
                name = ran.stderr.rstrip().rpartition("\n")[2].partition(":")[0]
                events.append({"type": "error", "name": name, "value": "", "traceback": ran.stderr})
            self._answer(*events)

    def do_DELETE(self) -> None:
        """End a context, or the sandbox."""
        self.asked.append(self.path)
        if self.path.startswith("/contexts/"):
            self.contexts[self.path.removeprefix("/contexts/")].close()
        self._answer({})

    def _answer(self, *documents: dict[str, Any]) -> None:
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write("".join(f"{json.dumps(document)}\n" for document in documents).encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@contextlib.contextmanager
def serve() -> Iterator[tuple[str, list[str]]]:
    """Serve, and yield the address and the paths that were asked for."""
    asked: list[str] = []
    plain = BubblewrapSandbox(SandboxSection(unsafe=True))
    handler = type("Handler", (_Handler,), {"plain": plain, "contexts": {}, "asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()
        thread.join()
    plain.close()
