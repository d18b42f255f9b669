"""Run programs in namespaces of this machine, by bubblewrap (https://github.com/containers/bubblewrap).

    BubblewrapSandbox ── bwrap ── fork_server.py ─┬─ watcher ─ program
                                                  └─ watcher ─ peer        see fork_server.py

bwrap builds once what all programs see: the system's programs and libraries, read-only, and nothing else of this
machine. A run then costs a few forks. The server holds no secret and no program, so what it shares with programs
tells them nothing.
"""

import contextlib
import fcntl
import json
import marshal
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from arl.errors import SandboxError
from arl.sandbox.base import MAX_OUTPUT, PEER_READ, PEER_WRITE, Outcome, Program, Result, Shell
from arl.sandbox.syscall_filter import syscall_filter

START_SECONDS = 30.0  # for the server to start
GRACE_SECONDS = 20.0  # for a server to report the end of a program, beyond the limit of the program
_HEADER = 8
_READ_BYTES = 1 << 16
_CAP_SYS_ADMIN = 1 << 21
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # the same program gives the same result
    "PYTHONDONTWRITEBYTECODE": "1",
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
}


class _Server:
    """Hold one bwrap with its fork server."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = ours
        info_reads, info_writes = os.pipe()
        with theirs, tempfile.TemporaryFile() as messages:
            self._process = subprocess.Popen(
                _command(info_writes),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=messages,
                pass_fds=(info_writes,),
                start_new_session=True,  # Ctrl-C is for the caller, who then ends this
                env=_ENVIRONMENT,
                cwd="/",
            )
            os.close(info_writes)
            theirs.close()
            ours.settimeout(START_SECONDS)
            try:
                is_ready = bool(ours.recv(1))
            except TimeoutError:
                is_ready = False
            with open(info_reads) as info:
                text = info.read() if is_ready else ""
            self._inner = json.loads(text)["child-pid"] if is_ready else 0
            if not is_ready:
                self.close()
                messages.seek(0)
                raise SandboxError(_explain(messages.read().decode("utf-8", "replace").strip()))

    @property
    def is_alive(self) -> bool:
        """Say whether the server still holds its end of the connection."""
        with contextlib.suppress(BlockingIOError):
            return bool(self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        return True

    def start(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> socket.socket:
        """Start a program with these files as its descriptors 0, 1, …, and return the connection to its watcher."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._socket, [b"r"], [theirs.fileno(), *descriptors])
        body = marshal.dumps(dict(request))
        ours.settimeout(GRACE_SECONDS)
        ours.sendall(len(body).to_bytes(_HEADER, "little") + body)
        return ours

    def close(self) -> None:
        """End the server with everything that it has started."""
        self._socket.close()
        with contextlib.suppress(ProcessLookupError):
            if self._inner:
                os.kill(self._inner, signal.SIGKILL)  # the first of its process namespace
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_SECONDS)
            return
        self._process.kill()
        self._process.wait()


class _ServerLost(Exception):
    """Report that a server has died or hangs, and with it a run of which nothing is known."""


class BubblewrapSandbox:
    """Implement Sandbox by one bwrap, which starts at the first run.

    Raises:
        SandboxError: bwrap is missing, or the kernel does not let it isolate programs.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, bytes] = {}
        self._filters = {may_execute: syscall_filter(may_execute=may_execute) for may_execute in (False, True)}
        self._server: _Server | None = _Server()

    def run(self, program: Program, peer: Program | None = None) -> Result:
        """See Sandbox."""
        server = self._replaced(None)
        try:
            return self._run(server, program, peer)
        except _ServerLost:
            server = self._replaced(server)
        try:
            return self._run(server, program, peer)
        except _ServerLost as error:
            self._replaced(server)
            raise SandboxError(f"{error}, twice for the same program: bwrap or its fork server was killed") from error

    def write(self, path: str, content: bytes) -> None:
        """See Sandbox."""
        self._files[path] = content

    def shell(self, *, seconds: float, memory_mb: int) -> Shell:
        """See Sandbox."""
        raise NotImplementedError

    def close(self) -> None:
        """See Sandbox."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.close()

    def _replaced(self, lost: _Server | None) -> _Server:
        """Return the server, started anew if it is the one that is lost, or if there is none."""
        with self._lock:
            if self._server is not None and self._server is lost:
                self._server.close()
                self._server = None
            if self._server is None:
                self._server = _Server()
            return self._server

    def _run(self, server: _Server, program: Program, peer: Program | None) -> Result:
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
            return _result(server, control, (stdout.fileno(), stderr.fileno()), program.seconds)

    def _start(self, server: _Server, program: Program, files: Sequence[FileIO]) -> socket.socket:
        has_peer = len(files) > 3
        request = {
            "code": program.code,
            "command": program.command,
            "files": {**self._files, **program.files},
            "seconds": program.seconds,
            "memory": program.memory_mb << 20,
            "filter": self._filters[bool(program.command)],
            "environment": {PEER_READ: "3", PEER_WRITE: "4"} if has_peer else {},
            "is_shell": False,
        }
        try:
            return server.start(request, [file.fileno() for file in files])
        except OSError as error:
            raise _ServerLost(f"the sandbox did not start a program: {error}") from error


def _result(server: _Server, control: socket.socket, streams: tuple[int, int], seconds: float) -> Result:
    """Read what a program writes until its watcher reports its end, or it has written too much.

    Raises:
        _ServerLost: the server has died, or reports nothing.
        SandboxError: the program could not be isolated.
    """
    written = {number: bytearray() for number in streams}
    end = time.monotonic() + seconds + GRACE_SECONDS
    report = b""
    with selectors.DefaultSelector() as selector:
        for source in (control, *streams):
            selector.register(source, selectors.EVENT_READ)
        while not report:
            events = selector.select(end - time.monotonic())
            if not events:
                raise _ServerLost(f"no end of a program is reported {GRACE_SECONDS:g} s after its time limit")
            for key, _ in events:
                if key.fileobj is control:
                    report = _receive(control) or b"lost"
                elif not _read(key.fd, written[key.fd]):
                    selector.unregister(key.fd)
                elif len(written[key.fd]) > MAX_OUTPUT:
                    report = b"-9 2 0"
    for number, data in written.items():
        os.set_blocking(number, False)
        while len(data) <= MAX_OUTPUT and _read(number, data):
            """What was written before the end is read to the end."""
    stdout, stderr = (bytes(written[number][:MAX_OUTPUT]).decode("utf-8", "replace") for number in streams)
    if report == b"lost":
        if not server.is_alive:
            raise _ServerLost("the sandbox died")
        return Result(outcome="error", exit_code=-signal.SIGKILL, stdout=stdout, stderr=stderr)
    if report.startswith(b"!"):
        raise SandboxError(f"the sandbox cannot start a program: {report[1:].decode()}")
    exit_code, limit, elapsed = report.split()
    outcome = _outcome(int(exit_code), int(limit), stderr)
    if max(map(len, written.values())) > MAX_OUTPUT:
        outcome = "output"
    return Result(outcome=outcome, exit_code=int(exit_code), stdout=stdout, stderr=stderr, seconds=float(elapsed))


def _outcome(exit_code: int, is_late: int, stderr: str) -> Outcome:
    if is_late:
        return "time"
    if exit_code == 0:
        return "done"
    last_line = stderr.rstrip().rpartition("\n")[2]
    if exit_code == -signal.SIGKILL or last_line.startswith("MemoryError"):
        return "memory"  # the kernel kills a program where the machine has no memory left
    return "error"


def _read(number: int, into: bytearray) -> bool:
    """Add what has arrived, and say whether there may be more."""
    try:
        data = os.read(number, _READ_BYTES)
    except BlockingIOError:
        return False
    into += data
    return bool(data)


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(_READ_BYTES)
    except ConnectionError:
        return b""


def _end(control: socket.socket) -> None:
    """Let a watcher end its program, if it still runs, and wait until both are gone."""
    with control, contextlib.suppress(OSError):
        control.shutdown(socket.SHUT_WR)
        while control.recv(_READ_BYTES):
            """Reports are of no interest any more."""


def _pipe(stack: contextlib.ExitStack) -> tuple[FileIO, FileIO]:
    reads, writes = os.pipe()
    return (
        stack.enter_context(open(reads, "rb", buffering=0)),
        stack.enter_context(open(writes, "wb", buffering=0)),
    )


def _close(*files: FileIO) -> None:
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


def _command(info: int) -> list[str]:
    """Return the command that starts bwrap with the fork server.

    A root that may mount does so itself, because only then the server can become another user, whose number of
    processes the kernel limits.
    """
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxError("sandbox.kind bubblewrap: there is no bwrap on PATH; apt install bubblewrap" + _OTHERWISE)
    is_root = os.geteuid() == 0 and _has_capability(_CAP_SYS_ADMIN)
    user = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"] if is_root else ["--unshare-user"]
    argv = [bwrap, *user, "--unshare-pid", "--unshare-ipc", "--unshare-net", "--unshare-uts", "--as-pid-1"]
    argv += ["--info-fd", str(info), "--ro-bind", "/usr", "/usr"]
    for path in ("/bin", "/sbin", "/lib", "/lib64"):
        if os.path.islink(path):
            argv += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            argv += ["--ro-bind", path, path]
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    packages = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    for path in (sys.base_prefix, *packages):
        if not Path(path).is_relative_to("/usr"):
            for parent in reversed(Path(path).parents[:-1]):
                argv += ["--dir", str(parent)]  # readable for all, other than those that bwrap makes by itself
            argv += ["--ro-bind", path, path]
    for path in ("/etc/ld.so.cache", "/etc/alternatives"):
        argv += ["--ro-bind-try", path, path]
    argv += ["--tmpfs", "/dev"]
    for path in ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"):
        argv += ["--dev-bind", path, path]
    argv += ["--dir", "/tmp", "--bind", "/proc", "/proc", "--remount-ro", "/dev", "--remount-ro", "/"]
    code = Path(__file__).with_name("fork_server.py").read_text()
    return [*argv, "--", python, "-s", "-S", "-P", "-c", code, "root" if is_root else "user", *packages]


def _has_capability(bit: int) -> bool:
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(line.split()[1], 16) & bit)


_OTHERWISE = (
    ", or let sandbox.kind name a service, or say sandbox.unsafe: true where the machine holds nothing of value"
)


def _explain(messages: str) -> str:
    return f"sandbox.kind bubblewrap cannot isolate programs here: {messages}"
