"""Run programs in namespaces of this machine.

    BubblewrapSandbox ── bwrap ── fork_server.py ─┬─ watcher ─ program
                                                  └─ watcher ─ peer        see fork_server.py

A run costs a few forks. Two programs that run at the same time share two pipes, if they are peers, and else nothing.
"""

import fcntl
import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from io import FileIO
from typing import Any, TypeVar

import msgspec

from arl.config.sandbox_section import SandboxSection
from arl.errors import SandboxError
from arl.sandbox import fork_server
from arl.sandbox.base import RESTARTED, Program, Result, Shell
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
        return self.retried(lambda server: self._run(server, program, peer))

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

    def retried(self, work: Callable[[Server], _T]) -> _T:
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
        """Run a program.

        Raises:
            _ServerLost: the server has died, or reports nothing.
            SandboxError: the program could not be isolated.
        """
        with ExitStack() as stack:
            pipes: tuple[FileIO, ...] = ()
            if peer is not None:
                from_peer, peer_writes = _pipe(stack)
                peer_reads, to_peer = _pipe(stack)
                null = stack.enter_context(open(os.devnull, "r+b", buffering=0))
                self._start(server, stack, peer, (_file(stack, peer.stdin), null, null, peer_reads, peer_writes))
                pipes = (from_peer, to_peer)
            control, streams = self.start(server, stack, program, pipes)
            begin = time.monotonic()
            written = Written(streams)
            report = written.collect(control, program.seconds + GRACE_SECONDS)
            if report is None and not written.is_full:
                raise _ServerLost(f"no end of a program is reported {GRACE_SECONDS:g} s after its time limit")
            if report == b"":
                raise _ServerLost("the watcher of a program died, and with it all that is known of the program")
            return written.reported(report, time.monotonic() - begin)

    def start(
        self, server: Server, stack: ExitStack, program: Program, files: Sequence[Any], *, is_shell: bool = False
    ) -> tuple[socket.socket, tuple[FileIO, FileIO]]:
        """Start a program with these files as its descriptors 3, 4, …, until the stack is left.

        Returns:
            The connection to its watcher, and what it writes.
        """
        stdout, stdout_writes = _pipe(stack)
        stderr, stderr_writes = _pipe(stack)
        theirs = (_file(stack, program.stdin), stdout_writes, stderr_writes, *files)
        return self._start(server, stack, program, theirs, is_shell=is_shell), (stdout, stderr)

    def _start(
        self, server: Server, stack: ExitStack, program: Program, files: Sequence[Any], *, is_shell: bool = False
    ) -> socket.socket:
        """Start a program with these files as its descriptors 0, 1, …, and close them here."""
        request = {
            "code": program.code,
            "command": program.command,
            "files": {**self._files, **program.files},
            "seconds": 0.0 if is_shell else program.seconds,
            "memory": program.memory_mb << 20,
            "filter": self._filters[bool(program.command)],
            "is_shell": is_shell,
        }
        try:
            control = server.start(request, [file.fileno() for file in files])
        except OSError as error:
            raise _ServerLost(f"the sandbox did not start a program: {error}") from error
        stack.callback(_end, control)
        for file in files:
            file.close()
        return control


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
        with suppress(OSError):  # it has ended meanwhile, or reads nothing
            self._control.sendall(fork_server.GO)
            self._codes.sendall(len(body).to_bytes(fork_server.HEADER, "little") + body)
            answer = written.collect(self._codes, self._seconds)
        if answer:
            with suppress(OSError):  # it has ended since
                self._control.sendall(fork_server.STOP)
            result = written.result(None, int(answer != b"1"), time.monotonic() - begin)
        else:  # it has ended; or it runs on, without the connection
            report = None if answer is None else written.collect(self._control, END_SECONDS)
            self.close()
            result = written.reported(report, time.monotonic() - begin)
        if written.is_full:
            self.close()
        return msgspec.structs.replace(result, stderr=note + result.stderr)

    def close(self) -> None:
        """See Shell."""
        self._is_open = False
        self._stack.close()

    def _open(self) -> None:
        with ExitStack() as stack:
            self._control, self._streams = self._sandbox.retried(functools.partial(self._start, stack))
            self._stack = stack.pop_all()
        self._is_open = True

    def _start(self, stack: ExitStack, server: Server) -> tuple[socket.socket, tuple[FileIO, FileIO]]:
        self._codes, codes = map(stack.enter_context, socket.socketpair())
        self._codes.settimeout(self._seconds)
        return self._sandbox.start(server, stack, self._limits, (codes,), is_shell=True)


def _end(control: socket.socket) -> None:
    """Let a watcher end its program, if it still runs, and wait until both are gone.

    Raises:
        SandboxError: the program could not be isolated.
    """
    with control, suppress(OSError):
        control.settimeout(END_SECONDS)
        control.shutdown(socket.SHUT_WR)
        while report := receive(control):
            if report.startswith(b"!"):  # of a peer, of which nobody else hears that it did not start
                raise SandboxError(f"the sandbox cannot start a program: {report[1:].decode()}")


def _pipe(stack: ExitStack) -> tuple[FileIO, FileIO]:
    reads, writes = os.pipe()
    return (
        stack.enter_context(open(reads, "rb", buffering=0)),
        stack.enter_context(open(writes, "wb", buffering=0)),
    )


def _file(stack: ExitStack, content: str) -> FileIO:
    """Return a file in memory that a program cannot change."""
    number = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    file = FileIO(number, "r+b")
    stack.callback(file.close)
    file.write(content.encode("utf-8", "replace"))
    file.seek(0)
    fcntl.fcntl(number, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return file
