"""Run programs in namespaces of this machine.

    BubblewrapSandbox ── bwrap ── fork_server.py ─┬─ watcher ─ program
                                                  └─ watcher ─ peer        see fork_server.py

A run costs a few forks. Two programs that run at the same time share two pipes, if they are peers, and else nothing.
"""

import contextlib
import fcntl
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from io import FileIO
from typing import Any, TypeVar

import msgspec

from arl.config.sandbox_section import SandboxSection
from arl.errors import SandboxError
from arl.sandbox import fork_server
from arl.sandbox.base import PEER_READ, PEER_WRITE, RESTARTED, Program, Result, Shell
from arl.sandbox.bubblewrap_server import END_SECONDS, GRACE_SECONDS, Server
from arl.sandbox.program_output import Written, receive
from arl.sandbox.syscall_filter import syscall_filter

_T = TypeVar("_T")


class _ServerLost(Exception):
    """Report that a server has died or hangs, and with it a run of which nothing is known."""


class BubblewrapSandbox:
    """Implement Sandbox by one bwrap; with `unsafe: true` by its fork server alone, which hides nothing.

    Raises:
        SandboxError: bwrap is missing, or the kernel does not let it isolate programs.
    """

    def __init__(self, section: SandboxSection | None = None) -> None:
        self._is_isolated = section is None or not section.unsafe
        self._lock = threading.Lock()
        self._files: dict[str, bytes] = {}
        self._filters = {may_execute: syscall_filter(may_execute=may_execute) for may_execute in (False, True)}
        self._server: Server | None = Server(self._is_isolated)

    def run(self, program: Program, peer: Program | None = None) -> Result:
        """See Sandbox."""
        return self._retried(lambda server: self._run(server, program, peer))

    def write(self, path: str, content: bytes) -> None:
        """See Sandbox."""
        self._files[path] = content

    def shell(self, *, seconds: float, memory_mb: int) -> Shell:
        """See Sandbox."""
        return _Shell(self, seconds, memory_mb)

    def close(self) -> None:
        """See Sandbox."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.close()

    def start_shell(self, limits: Program, files: Sequence[Any]) -> socket.socket:
        """Start an interpreter that reads codes from the last of the files; return the connection to its watcher."""
        return self._retried(lambda server: self._start(server, limits, files, is_shell=True))

    def _retried(self, work: Callable[[Server], _T]) -> _T:
        """Do something with the server, and again with another one if the first is lost."""
        server = self._replaced(None)
        try:
            return work(server)
        except _ServerLost:
            server = self._replaced(server)
        try:
            return work(server)
        except _ServerLost as error:
            raise SandboxError(f"{error}, twice for the same program: bwrap or its fork server was killed") from error

    def _replaced(self, lost: Server | None) -> Server:
        """Return the server, started anew if it is the one that is lost, or if there is none."""
        with self._lock:
            if self._server is not None and self._server is lost:
                self._server.close()
                self._server = None
            if self._server is None:
                self._server = Server(self._is_isolated)
            return self._server

    def _run(self, server: Server, program: Program, peer: Program | None) -> Result:
        with contextlib.ExitStack() as stack:
            pipes: tuple[FileIO, ...] = ()
            if peer is not None:
                from_peer, peer_writes = _pipe(stack)
                peer_reads, to_peer = _pipe(stack)
                null = stack.enter_context(open(os.devnull, "r+b", buffering=0))
                files = (_file(stack, peer.stdin), null, null, peer_reads, peer_writes)
                stack.callback(_end, self._start(server, peer, files))
                _close(peer_reads, peer_writes)
                pipes = (from_peer, to_peer)
            stdout, stdout_writes = _pipe(stack)
            stderr, stderr_writes = _pipe(stack)
            written = (stdout_writes, stderr_writes)
            control = self._start(server, program, (_file(stack, program.stdin), *written, *pipes))
            stack.callback(_end, control)
            _close(*written, *pipes)
            return _result(server, control, (stdout, stderr), program.seconds)

    def _start(
        self, server: Server, program: Program, files: Sequence[Any], *, is_shell: bool = False
    ) -> socket.socket:
        """Start a program with these files as its descriptors 0, 1, …, and return the connection to its watcher."""
        has_peer = len(files) > 3 and not is_shell
        request = {
            "code": program.code,
            "command": program.command,
            "files": {**self._files, **program.files},
            "seconds": 0.0 if is_shell else program.seconds,
            "memory": program.memory_mb << 20,
            "filter": self._filters[bool(program.command)],
            "environment": {PEER_READ: "3", PEER_WRITE: "4"} if has_peer else {},
            "is_shell": is_shell,
        }
        try:
            return server.start(request, [file.fileno() for file in files])
        except OSError as error:
            raise _ServerLost(f"the sandbox did not start a program: {error}") from error


def _result(server: Server, control: socket.socket, streams: tuple[FileIO, FileIO], seconds: float) -> Result:
    """Read what a program writes until its watcher reports its end, or it has written too much.

    Raises:
        _ServerLost: the server has died, or reports nothing.
        SandboxError: the program could not be isolated.
    """
    begin = time.monotonic()
    written = Written(streams)
    report = written.collect(control, seconds + GRACE_SECONDS)
    if report is None and not written.is_full:
        raise _ServerLost(f"no end of a program is reported {GRACE_SECONDS:g} s after its time limit")
    if report == b"" and not server.is_alive:
        raise _ServerLost("the sandbox died")
    return written.reported(report, time.monotonic() - begin)


class _Shell:
    """Implement Shell by a forked interpreter. It is stopped between two calls, so that an idle one takes no time."""

    def __init__(self, sandbox: BubblewrapSandbox, seconds: float, memory_mb: int) -> None:
        self._sandbox = sandbox
        self._seconds = seconds
        self._limits = Program(memory_mb=memory_mb)
        self._open()

    def run(self, code: str) -> Result:
        """See Shell."""
        note = "" if self._is_open else RESTARTED
        if not self._is_open:
            self._open()
        begin = time.monotonic()
        written = Written(self._streams)
        body = code.encode("utf-8", "replace")
        answer: bytes | None = b""
        with contextlib.suppress(OSError):  # it has ended meanwhile, or reads nothing
            self._control.sendall(fork_server.GO)
            self._codes.sendall(len(body).to_bytes(fork_server.HEADER, "little") + body)
            answer = written.collect(self._codes, self._seconds)
        if answer:
            with contextlib.suppress(OSError):  # it has ended since
                self._control.sendall(fork_server.STOP)
            result = written.result(None, int(answer != b"1"), time.monotonic() - begin)
        else:  # it has ended; or it runs on, without the connection
            report = None if answer is None else written.collect(self._control, END_SECONDS)
            result = written.reported(report, time.monotonic() - begin)
        if not answer or written.is_full:
            self.close()
        return msgspec.structs.replace(result, stderr=note + result.stderr)

    def close(self) -> None:
        """See Shell."""
        self._is_open = False
        self._stack.close()

    def _open(self) -> None:
        with contextlib.ExitStack() as stack:
            stdout, stdout_writes = _pipe(stack)
            stderr, stderr_writes = _pipe(stack)
            self._streams = (stdout, stderr)
            self._codes, codes = map(stack.enter_context, socket.socketpair())
            self._codes.settimeout(self._seconds)
            theirs = (_file(stack, ""), stdout_writes, stderr_writes, codes)
            self._control = self._sandbox.start_shell(self._limits, theirs)
            stack.callback(_end, self._control)
            _close(*theirs)
            self._stack = stack.pop_all()
        self._is_open = True


def _end(control: socket.socket) -> None:
    """Let a watcher end its program, if it still runs, and wait until both are gone."""
    with control, contextlib.suppress(OSError):
        control.settimeout(END_SECONDS)
        control.shutdown(socket.SHUT_WR)
        while receive(control):
            """Reports are of no interest any more."""


def _pipe(stack: contextlib.ExitStack) -> tuple[FileIO, FileIO]:
    reads, writes = os.pipe()
    return (
        stack.enter_context(open(reads, "rb", buffering=0)),
        stack.enter_context(open(writes, "wb", buffering=0)),
    )


def _close(*files: FileIO | socket.socket) -> None:
    for file in files:
        file.close()


def _file(stack: contextlib.ExitStack, content: str) -> FileIO:
    """Return a file in memory that a program cannot change."""
    number = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    file = FileIO(number, "r+b")
    stack.callback(file.close)
    file.write(content.encode("utf-8", "replace"))
    file.seek(0)
    fcntl.fcntl(number, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return file
