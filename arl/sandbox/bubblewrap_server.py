"""Start bwrap with the fork server in it (https://github.com/containers/bubblewrap), and end it.

bwrap builds once what all programs see: the system's programs and libraries, read-only, and nothing else of this
machine. The server holds no secret and no program, so what it shares with programs tells them nothing.
"""

import contextlib
import marshal
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arl.errors import SandboxError
from arl.sandbox import fork_server
from arl.sandbox.base import PEER_READ, PEER_WRITE

START_SECONDS = 30.0  # for the server to start
END_SECONDS = 2.0  # for a program that is ended, or a server, to be gone
GRACE_SECONDS = 20.0  # for a server to report the end of a program, beyond the limit of the program
_CAP_SYS_ADMIN = 1 << 21
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # the same program gives the same result
    "PYTHONDONTWRITEBYTECODE": "1",
    PEER_READ: "3",
    PEER_WRITE: "4",
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
}


class Server:
    """Hold one bwrap with its fork server; with `is_isolated` false, the server alone."""

    def __init__(self, is_isolated: bool) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = ours
        with theirs, tempfile.TemporaryFile() as messages:
            self._process = subprocess.Popen(
                _command() if is_isolated else [*_python(), "plain", *_packages()],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=messages,
                start_new_session=True,  # Ctrl-C is for the caller, who then ends this
                env=_ENVIRONMENT,
                cwd="/",
            )
            theirs.close()
            ours.settimeout(START_SECONDS)
            try:
                is_ready = bool(ours.recv(1))
            except TimeoutError:
                is_ready = False
            if not is_ready:
                self.close()
                messages.seek(0)
                raise SandboxError(_explain(messages.read().decode("utf-8", "replace").strip()))

    def start(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> socket.socket:
        """Start a program with these files as its descriptors 0, 1, …, and return the connection to its watcher."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._socket, [b"r"], [theirs.fileno(), *descriptors])
        body = marshal.dumps(dict(request))
        ours.settimeout(GRACE_SECONDS)
        ours.sendall(len(body).to_bytes(fork_server.HEADER, "little") + body)
        return ours

    def close(self) -> None:
        """End the server with everything that it has started."""
        with self._socket, contextlib.suppress(OSError):  # it may be gone
            self._socket.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:  # the server hangs
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _command() -> list[str]:
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
    argv += ["--hostname", "sandbox", "--ro-bind", "/usr", "/usr"]
    for path in ("/bin", "/sbin", "/lib", "/lib64"):
        if os.path.islink(path):
            argv += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            argv += ["--ro-bind", path, path]
    for path in (sys.base_prefix, *_packages()):
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
    return [*argv, "--", *_python(), "root" if is_root else "user", *_packages()]


def _python() -> list[str]:
    """Return the command of an interpreter that runs the fork server; its first argument is the user."""
    code = Path(fork_server.__file__).read_text()
    return [os.path.realpath(getattr(sys, "_base_executable", sys.executable)), "-s", "-S", "-P", "-c", code]


def _packages() -> list[str]:
    """Return where the packages of this interpreter are, which programs may import."""
    return sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


def _has_capability(bit: int) -> bool:
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(line.split()[1], 16) & bit)


_OTHERWISE = (
    ", or let sandbox.kind name a service, or say sandbox.unsafe: true where the machine holds nothing of value"
)


def _explain(messages: str) -> str:
    """Say why bwrap has not started, and what helps."""
    return (
        f"sandbox.kind bubblewrap cannot isolate programs here: {messages or 'it does not answer'}; the kernel must "
        "let users make namespaces: sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000, "
        "on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0; in a container start it by "
        f"docker run --security-opt seccomp=unconfined --cap-add SYS_ADMIN{_OTHERWISE}"
    )
