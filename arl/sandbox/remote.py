"""Run programs on a service that takes code over HTTP: what its homes have in common.

    Program, peer ─► bootstrap ─► the service ─► what it printed ─► Result

A service runs one piece of code at a time. So that is a bootstrap, which starts the program and its peer as processes
with pipes between them, and prints how the first one has ended behind a mark that nobody else knows beforehand.
"""

import base64
import json
import os
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from arl.config.sandbox_section import SandboxSection
from arl.errors import SandboxError
from arl.sandbox import remote_bootstrap
from arl.sandbox.base import MAX_OUTPUT, PEER_READ, PEER_WRITE, Program, Result

KEY = "ARL_SANDBOX_KEY"  # environment variable
LARGEST = 32 << 20  # bytes of an answer
SERVICE_OUTPUT = MAX_OUTPUT // 4  # bytes of each stream, because services bound what all of it may be
START_SECONDS = 60.0  # for the service to begin and to answer, beyond the limit of the program


class Overrun(SandboxError):
    """Report that an answer takes too long, or is too large."""


class Service:
    """Ask one service, by JSON."""

    def __init__(self, section: SandboxSection) -> None:
        if section.url is None:
            raise SandboxError(f"sandbox.url: required with sandbox.kind {section.kind}; the address of the service")
        self.kind = section.kind
        self.url = section.url.rstrip("/")
        self.key = os.environ.get(KEY, "")

    def ask(
        self, method: str, url: str, body: Mapping[str, Any] | None, headers: Mapping[str, str], seconds: float
    ) -> bytes:
        """Send a request, and return the body of the answer.

        Raises:
            Overrun: it does not end in time.
            SandboxError: there is no answer, or it is an error.
        """
        data = None if body is None else json.dumps(body).encode()
        head = {"Content-Type": "application/json", **headers}
        request = urllib.request.Request(url, data=data, method=method, headers=head)
        end = time.monotonic() + seconds
        received = bytearray()
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:
                while part := answer.read1(1 << 16):
                    received += part
                    if time.monotonic() > end or len(received) > LARGEST:
                        raise TimeoutError(f"{len(received)} bytes in {seconds:g} s, and more to come")
            return bytes(received)
        except TimeoutError as error:
            raise Overrun(f"sandbox {self.kind}: {method} {url} did not end: {error}") from error
        except urllib.error.HTTPError as error:
            hint = f"; is {KEY} its key?" if error.code in (401, 403) else ""
            text = error.read(300).decode("utf-8", "replace")
            raise SandboxError(f"sandbox {self.kind}: {method} {url} gave {error.code}: {text}{hint}") from error
        except (OSError, ValueError) as error:
            raise SandboxError(f"sandbox {self.kind}: {method} {url} failed: {error} (sandbox.url)") from error


def bootstrap(program: Program, peer: Program | None, files: Mapping[str, bytes]) -> tuple[str, str]:
    """Return code that runs a program and its peer, and the mark behind which it prints the result."""
    mark = secrets.token_hex(16)
    names = (PEER_READ, PEER_WRITE, SERVICE_OUTPUT)
    programs = [_encoded(program, files), None if peer is None else _encoded(peer, files)]
    source = Path(remote_bootstrap.__file__).read_text()
    return f"{source}\nprint({mark!r} + json.dumps(run({json.dumps(programs)!r}, {names!r})))\n", mark


def _encoded(program: Program, files: Mapping[str, bytes]) -> dict[str, Any]:
    contents = {**files, **program.files}
    encoded = {name: base64.b64encode(content).decode() for name, content in contents.items()}
    return {**msgspec.structs.asdict(program), "files": encoded}


def result_behind(mark: str, text: str, kind: str) -> Result:
    """Return the result that the bootstrap has printed.

    Raises:
        SandboxError: there is none.
    """
    _, found, body = text.partition(mark)
    try:
        return msgspec.json.decode(body.strip() if found else "", type=Result)
    except msgspec.MsgspecError as error:
        raise SandboxError(
            f"sandbox {kind}: it did not run a program to its end, and printed {text[-300:]!r}"
        ) from error
