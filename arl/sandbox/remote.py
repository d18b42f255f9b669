"""Run programs on a service that takes code over HTTP: what its homes have in common.

    Program, peer ─► remote_bootstrap.py ─► the service ─► what it printed ─► Result

A service runs one piece of code at a time. So that is a bootstrap, which starts the program and its peer as processes
with pipes between them, and prints how the first one has ended behind a mark that nobody else knows beforehand.
"""

import abc
import base64
import json
import os
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from arl.config.sandbox_section import SandboxSection
from arl.errors import SandboxError
from arl.sandbox import remote_bootstrap
from arl.sandbox.base import MAX_OUTPUT, PEER_READ, PEER_WRITE, Program, Result, Shell

KEY = "ARL_SANDBOX_KEY"  # environment variable
LARGEST = 32 << 20  # bytes of an answer
SERVICE_OUTPUT = MAX_OUTPUT // 4  # bytes of each stream, because services bound what all of it may be
START_SECONDS = 60.0  # for the service to begin and to answer, beyond the limit of the program
_T = TypeVar("_T")


class RemoteSandbox(abc.ABC):
    """Implement of Sandbox what the requests of a service do not decide."""

    def __init__(self, section: SandboxSection) -> None:
        if section.url is None:
            raise SandboxError(f"sandbox.url: required with sandbox.kind {section.kind}; the address of the service")
        self._kind = section.kind
        self._url = section.url.rstrip("/")
        self._key = os.environ.get(KEY, "")
        self._files: dict[str, bytes] = {}

    def run(self, program: Program, peer: Program | None = None) -> Result:
        """See Sandbox."""
        mark = secrets.token_hex(16)
        programs = json.dumps([each and self._encoded(each) for each in (program, peer)])
        source = Path(remote_bootstrap.__file__).read_text()
        call = f"run({programs!r}, {PEER_READ!r}, {PEER_WRITE!r}, {SERVICE_OUTPUT})"
        text = self._printed(f"{source}\nprint({mark!r} + json.dumps({call}))\n", program.seconds + START_SECONDS)
        return self._decoded(text.partition(mark)[2] or text, Result)

    def write(self, path: str, content: bytes) -> None:
        """See Sandbox."""
        self._files[path] = content

    def shell(self, *, seconds: float, memory_mb: int) -> Shell:
        """See Sandbox. Raises SandboxError always."""
        raise SandboxError(f"sandbox.kind {self._kind} keeps no interpreter for a shell: take bubblewrap")

    def close(self) -> None:  # noqa: B027  # a service may keep nothing
        """See Sandbox."""

    @abc.abstractmethod
    def _printed(self, code: str, seconds: float) -> str:
        """Run code on the service, and return what it has printed."""

    def _encoded(self, program: Program) -> dict[str, Any]:
        contents = {**self._files, **program.files}
        encoded = {name: base64.b64encode(content).decode() for name, content in contents.items()}
        return {**msgspec.structs.asdict(program), "files": encoded}

    def _decoded(self, answer: bytes | str, kind: type[_T]) -> _T:
        try:
            return msgspec.json.decode(answer, type=kind)
        except msgspec.MsgspecError as error:
            raise SandboxError(f"sandbox {self._kind}: {answer[-300:]!r}: {error} (sandbox.url)") from error

    def _ask(
        self, method: str, url: str, body: Mapping[str, Any] | None, headers: Mapping[str, str], seconds: float
    ) -> bytes:
        """Send a request, and return the body of the answer.

        Raises:
            SandboxError: there is no answer in time, or it is an error.
        """
        data = None if body is None else json.dumps(body).encode()
        head = {"Content-Type": "application/json", **headers}
        end = time.monotonic() + seconds
        received = bytearray()
        try:
            request = urllib.request.Request(url, data=data, method=method, headers=head)
            with urllib.request.urlopen(request, timeout=seconds) as answer:
                while part := answer.read1(1 << 16):
                    received += part
                    if time.monotonic() > end or len(received) > LARGEST:
                        raise TimeoutError(f"{len(received)} bytes in {seconds:g} s, and more to come")
            return bytes(received)
        except urllib.error.HTTPError as error:
            hint = f"; is {KEY} its key?" if error.code in (401, 403) else ""
            text = error.read(300).decode("utf-8", "replace")
            raise SandboxError(f"sandbox {self._kind}: {method} {url} gave {error.code}: {text}{hint}") from error
        except (OSError, ValueError) as error:
            raise SandboxError(f"sandbox {self._kind}: {method} {url} failed: {error} (sandbox.url)") from error
