"""Run programs in a sandbox of E2B (https://e2b.dev), or of a service with its code interpreter's requests.

    POST   {url}/sandboxes       {templateID, timeout}                   ─► {sandboxID, domain, envdAccessToken}
    POST   {host}/contexts       {language}                              ─► {id}
    POST   {host}/execute        {code, context_id}                      ─► a line of JSON for each piece of output
    DELETE {host}/contexts/ID  and  {url}/sandboxes/ID

`host` is 49999-{sandboxID}.{domain}; where a service of your own names no domain, it is `url`.
"""

import contextlib
import json
import threading
import time
from collections.abc import Mapping
from typing import Any

from arl.config.sandbox_section import SandboxSection
from arl.errors import SandboxError
from arl.sandbox.base import MAX_OUTPUT, RESTARTED, Outcome, Program, Result, Shell
from arl.sandbox.remote import START_SECONDS, Overrun, Service, bootstrap, result_behind

TEMPLATE = "code-interpreter-v1"
PORT = 49999  # of the code interpreter
LIFETIME = 3600  # seconds after which the service ends a sandbox by itself; another one is then created


class E2BSandbox:
    """Implement Sandbox by one sandbox of the service, in which each run and shell has a context of its own."""

    def __init__(self, section: SandboxSection) -> None:
        self._service = Service(section)
        self._files: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._created: Mapping[str, Any] | None = None

    def run(self, program: Program, peer: Program | None = None) -> Result:
        """See Sandbox."""
        code, mark = bootstrap(program, peer, self._files)
        try:
            text = self._run_once(code, program.seconds)
        except SandboxError:  # the service has ended the sandbox meanwhile, perhaps
            self.close()
            text = self._run_once(code, program.seconds)
        return result_behind(mark, text, self._service.kind)

    def _run_once(self, code: str, seconds: float) -> str:
        context = self.open_context()
        try:
            return self.execute(context, code, seconds + START_SECONDS).stdout
        finally:
            self.close_context(context)

    def write(self, path: str, content: bytes) -> None:
        """See Sandbox."""
        self._files[path] = content

    def shell(self, *, seconds: float, memory_mb: int) -> Shell:
        """See Sandbox."""
        return _Shell(self, seconds, memory_mb, self._files)

    def close(self) -> None:
        """See Sandbox."""
        with self._lock:
            created, self._created = self._created, None
        if created is not None:
            with contextlib.suppress(SandboxError):  # it ends by itself
                self._manage("DELETE", f"/sandboxes/{created['sandboxID']}", None)

    def open_context(self) -> str:
        """Start an interpreter, and return its id."""
        return str(self._field(self._interpreter("POST", "/contexts", {"language": "python"}, START_SECONDS), "id"))

    def close_context(self, context: str) -> None:
        """End an interpreter."""
        with contextlib.suppress(SandboxError):  # it ends with the sandbox
            self._interpreter("DELETE", f"/contexts/{context}", None, START_SECONDS)

    def execute(self, context: str, code: str, seconds: float) -> Result:
        """Run code in an interpreter, and return what it has printed."""
        begin = time.monotonic()
        answer = self._interpreter("POST", "/execute", {"code": code, "context_id": context}, seconds)
        texts = {"stdout": "", "stderr": ""}
        outcome: Outcome = "done"
        for line in answer.splitlines():
            event = json.loads(line or b"{}")
            kind = event.get("type")
            if kind in texts:
                texts[kind] += event["text"]
            elif kind == "result" and event.get("is_main_result"):
                texts["stdout"] += f"{event['text']}\n"
            elif kind == "error":
                outcome = "memory" if event["name"] == "MemoryError" else "error"
                texts["stderr"] += event["traceback"]
        if max(map(len, texts.values())) > 2 * MAX_OUTPUT:
            outcome = "output"
        exit_code = 0 if outcome == "done" else 1
        return Result(outcome=outcome, exit_code=exit_code, seconds=time.monotonic() - begin, **texts)

    def _interpreter(self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> bytes:
        """Ask the code interpreter in the sandbox, which is created at the first call."""
        with self._lock:
            if self._created is None:
                answer = self._manage("POST", "/sandboxes", {"templateID": TEMPLATE, "timeout": LIFETIME})
                self._field(answer, "sandboxID")
                self._created = json.loads(answer)
            created = self._created
        number = created["sandboxID"]
        domain = created.get("domain")
        host = f"https://{PORT}-{number}.{domain}" if domain else self._service.url
        headers = {"E2b-Sandbox-Id": number, "E2b-Sandbox-Port": str(PORT)}
        if created.get("envdAccessToken"):
            headers["X-Access-Token"] = created["envdAccessToken"]
        return self._service.ask(method, f"{host}{path}", body, headers, seconds)

    def _manage(self, method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
        headers = {"X-API-Key": self._service.key}
        return self._service.ask(method, f"{self._service.url}{path}", body, headers, START_SECONDS)

    def _field(self, answer: bytes, name: str) -> Any:
        try:
            return json.loads(answer)[name]
        except (ValueError, KeyError, TypeError) as error:
            raise SandboxError(f"sandbox e2b: {answer[:300]!r} has no {name} (sandbox.url)") from error


class _Shell:
    """Implement Shell by a context."""

    def __init__(self, sandbox: E2BSandbox, seconds: float, memory_mb: int, files: Mapping[str, bytes]) -> None:
        self._sandbox = sandbox
        self._seconds = seconds
        limit = f"import resource\nresource.setrlimit(resource.RLIMIT_AS, ({memory_mb << 20},) * 2)\n"
        writes = (f"with open({name!r}, 'wb') as file: file.write({content!r})\n" for name, content in files.items())
        self._setup = limit + "".join(writes)
        self._context = ""
        self._note = ""

    def run(self, code: str) -> Result:
        """See Shell."""
        if not self._context:
            self._context = self._sandbox.open_context()
            self._sandbox.execute(self._context, self._setup, START_SECONDS)
        note, self._note = self._note, ""
        try:
            result = self._sandbox.execute(self._context, code, self._seconds)
        except Overrun:
            self.close()
            self._note = RESTARTED
            return Result(outcome="time", exit_code=-9, stderr=note, seconds=self._seconds)
        return Result(
            outcome=result.outcome,
            exit_code=result.exit_code,
            stdout=result.stdout[:MAX_OUTPUT],
            stderr=note + result.stderr[:MAX_OUTPUT],
            seconds=result.seconds,
        )

    def close(self) -> None:
        """See Shell."""
        if self._context:
            self._sandbox.close_context(self._context)
        self._context = ""
