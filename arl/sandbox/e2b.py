"""Run programs in a sandbox of E2B (https://e2b.dev), or of a service with its code interpreter's requests.

    POST   {url}/sandboxes       {templateID, timeout}                   ─► {sandboxID, domain, envdAccessToken}
    POST   {host}/contexts       {language}                              ─► {id}
    POST   {host}/execute        {code, context_id}                      ─► a line of JSON for each piece of output
    DELETE {host}/contexts/ID  and  {url}/sandboxes/ID

`host` is 49999-{sandboxID}.{domain}; where a service of your own names no domain, it is `url`.
"""

import contextlib
import threading
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from arl.config.sandbox_section import SandboxSection
from arl.errors import SandboxError
from arl.sandbox.remote import START_SECONDS, RemoteSandbox

TEMPLATE = "code-interpreter-v1"
PORT = 49999  # of the code interpreter
LIFETIME = 3600  # seconds after which the service ends a sandbox by itself; another one is then created


class _Created(Struct, rename={"id": "sandboxID", "token": "envdAccessToken"}):
    id: str
    domain: str | None = None
    token: str | None = None


class _Context(Struct):
    id: str


class _Event(Struct):
    type: str = ""
    text: str | None = None
    traceback: str = ""


class E2BSandbox(RemoteSandbox):
    """Implement Sandbox by one sandbox of the service, in which each run has a context of its own."""

    def __init__(self, section: SandboxSection) -> None:
        super().__init__(section)
        self._lock = threading.Lock()
        self._created: _Created | None = None

    def close(self) -> None:
        """See Sandbox."""
        if self._created is not None:
            with contextlib.suppress(SandboxError):  # it ends by itself
                self._manage("DELETE", f"/sandboxes/{self._created.id}", None)
            self._created = None

    def _printed(self, code: str, seconds: float) -> str:
        place = self._place(None)
        try:
            context = self._context(place)
        except SandboxError:  # the service has ended the sandbox meanwhile
            place = self._place(place)
            context = self._context(place)
        try:
            answer = self._interpret(place, "POST", "/execute", {"code": code, "context_id": context}, seconds)
        finally:
            with contextlib.suppress(SandboxError):  # it ends with the sandbox
                self._interpret(place, "DELETE", f"/contexts/{context}", None, START_SECONDS)
        events = [self._decoded(line or "{}", _Event) for line in answer.splitlines()]
        return "".join(event.traceback if event.type == "error" else event.text or "" for event in events)

    def _place(self, lost: _Created | None) -> _Created:
        """Return the sandbox, created anew if it is the one that is lost, or if there is none."""
        with self._lock:
            if self._created is lost or self._created is None:
                answer = self._manage("POST", "/sandboxes", {"templateID": TEMPLATE, "timeout": LIFETIME})
                self._created = self._decoded(answer, _Created)
            return self._created

    def _context(self, place: _Created) -> str:
        """Start an interpreter, and return its id."""
        answer = self._interpret(place, "POST", "/contexts", {"language": "python"}, START_SECONDS)
        return self._decoded(answer, _Context).id

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
