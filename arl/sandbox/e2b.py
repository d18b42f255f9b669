"""Run programs in a sandbox of E2B (https://e2b.dev), or of a service with its code interpreter's requests.

    POST   {url}/sandboxes       {templateID, timeout}                   ─► {sandboxID, domain, envdAccessToken}
    POST   {host}/contexts       {language}                              ─► {id}
    POST   {host}/execute        {code, context_id}                      ─► a line of JSON for each piece of output
    DELETE {host}/contexts/ID  and  {url}/sandboxes/ID

`host` is 49999-{sandboxID}.{domain}; where a service of your own names no domain, it is `url`.
"""

import contextlib
import threading
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from arl.config.sandbox_section import SandboxSection
from arl.errors import SandboxError
from arl.sandbox.base import MAX_OUTPUT, RESTARTED, Outcome, Result, Shell
from arl.sandbox.remote import START_SECONDS, Overrun, RemoteSandbox

TEMPLATE = "code-interpreter-v1"
PORT = 49999  # of the code interpreter
LIFETIME = 3600  # seconds after which the service ends a sandbox by itself; another one is then created


class _Created(Struct, rename={"id": "sandboxID", "token": "envdAccessToken"}):
    id: str
    domain: str | None = None
    token: str | None = None


class _Started(Struct):
    id: str


_Context = tuple[_Created, str]  # where an interpreter is, and its id


class _Event(Struct):
    type: str
    text: str | None = None
    is_main_result: bool = False
    name: str = ""
    traceback: str = ""


class E2BSandbox(RemoteSandbox):
    """Implement Sandbox by one sandbox of the service, in which each run and shell has a context of its own."""

    def __init__(self, section: SandboxSection) -> None:
        super().__init__(section)
        self._lock = threading.Lock()
        self._created: _Created | None = None

    def _printed(self, code: str, seconds: float) -> str:
        context = self.open_context()
        try:
            return self.execute(context, code, seconds).stdout
        finally:
            self.close_context(context)

    def shell(self, *, seconds: float, memory_mb: int) -> Shell:
        """See Sandbox."""
        return _Shell(self, seconds, memory_mb, self._files)

    def close(self) -> None:
        """See Sandbox."""
        if self._created is not None:
            with contextlib.suppress(SandboxError):  # it ends by itself
                self._manage("DELETE", f"/sandboxes/{self._created.id}", None)
            self._created = None

    def open_context(self) -> _Context:
        """Start an interpreter, in another sandbox if the service has ended the last one meanwhile."""
        place = self._place(None)
        try:
            return self._start_context(place)
        except SandboxError:
            return self._start_context(self._place(place))

    def _place(self, lost: _Created | None) -> _Created:
        """Return the sandbox, created anew if it is the one that is lost, or if there is none."""
        with self._lock:
            if self._created is lost or self._created is None:
                answer = self._manage("POST", "/sandboxes", {"templateID": TEMPLATE, "timeout": LIFETIME})
                self._created = self._decoded(answer, _Created)
            return self._created

    def _start_context(self, place: _Created) -> _Context:
        answer = self._interpret(place, "POST", "/contexts", {"language": "python"}, START_SECONDS)
        return place, self._decoded(answer, _Started).id

    def close_context(self, context: _Context) -> None:
        """End an interpreter."""
        place, number = context
        with contextlib.suppress(SandboxError):  # it ends with the sandbox
            self._interpret(place, "DELETE", f"/contexts/{number}", None, START_SECONDS)

    def execute(self, context: _Context, code: str, seconds: float) -> Result:
        """Run code in an interpreter, and return what it has printed."""
        begin = time.monotonic()
        place, number = context
        answer = self._interpret(place, "POST", "/execute", {"code": code, "context_id": number}, seconds)
        texts = {"stdout": "", "stderr": ""}
        outcome: Outcome = "done"
        for line in answer.splitlines():
            event = self._decoded(line or b'{"type": ""}', _Event)
            if event.type in texts:
                texts[event.type] += event.text or ""
            elif event.type == "result" and event.is_main_result:
                texts["stdout"] += f"{event.text}\n"
            elif event.type == "error":
                outcome = "memory" if event.name == "MemoryError" else "error"
                texts["stderr"] += event.traceback
        return Result(outcome=outcome, exit_code=int(outcome != "done"), seconds=time.monotonic() - begin, **texts)

    def _interpret(
        self, place: _Created, method: str, path: str, body: Mapping[str, Any] | None, seconds: float
    ) -> bytes:
        """Ask the code interpreter in a sandbox."""
        host = f"https://{PORT}-{place.id}.{place.domain}" if place.domain else self._url
        headers = {"E2b-Sandbox-Id": place.id, "E2b-Sandbox-Port": str(PORT)}
        if place.token:
            headers["X-Access-Token"] = place.token
        return self._ask(method, f"{host}{path}", body, headers, seconds)

    def _manage(self, method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
        return self._ask(method, f"{self._url}{path}", body, {"X-API-Key": self._key}, START_SECONDS)


class _Shell:
    """Implement Shell by a context."""

    def __init__(self, sandbox: E2BSandbox, seconds: float, memory_mb: int, files: Mapping[str, bytes]) -> None:
        self._sandbox = sandbox
        self._seconds = seconds
        limit = f"import resource\nresource.setrlimit(resource.RLIMIT_AS, ({memory_mb << 20},) * 2)\n"
        writes = (f"with open({name!r}, 'wb') as file: file.write({content!r})\n" for name, content in files.items())
        self._setup = limit + "".join(writes)
        self._context: _Context | None = None
        self._open()

    def run(self, code: str) -> Result:
        """See Shell."""
        note = "" if self._context else RESTARTED
        context = self._context or self._open()
        try:
            result = self._sandbox.execute(context, code, self._seconds)
        except Overrun:
            self.close()
            return Result(outcome="time", exit_code=-9, stderr=note, seconds=self._seconds)
        stdout, stderr = result.stdout[:MAX_OUTPUT], note + result.stderr[:MAX_OUTPUT]
        return msgspec.structs.replace(result, stdout=stdout, stderr=stderr)

    def close(self) -> None:
        """See Shell."""
        if self._context is not None:
            self._sandbox.close_context(self._context)
            self._context = None

    def _open(self) -> _Context:
        self._context = self._sandbox.open_context()
        self._sandbox.execute(self._context, self._setup, START_SECONDS)
        return self._context
