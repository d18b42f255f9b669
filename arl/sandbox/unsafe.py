"""Run programs as plain processes of this user, without isolation: only where a recipe says `sandbox.unsafe: true`."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from arl.sandbox.base import MAX_OUTPUT, PEER_READ, PEER_WRITE, Outcome, Program, Result, Shell


class UnsafeSandbox:
    """Implement Sandbox by processes in a folder of their own."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def run(self, program: Program, peer: Program | None = None) -> Result:
        """See Sandbox."""
        with contextlib.ExitStack() as stack:
            ours: Mapping[str, int] = {}
            if peer is not None:
                from_peer, peer_writes = os.pipe()
                peer_reads, to_peer = os.pipe()
                ours = {PEER_READ: from_peer, PEER_WRITE: to_peer}
                theirs = {PEER_READ: peer_reads, PEER_WRITE: peer_writes}
                stack.callback(_end, self._start(peer, theirs, stack))
                os.close(peer_reads)
                os.close(peer_writes)
            begin = time.monotonic()
            process = self._start(program, ours, stack)
            for number in ours.values():
                os.close(number)
            stack.callback(_end, process)
            outcome: Outcome = "time"
            stdout = stderr = b""
            with contextlib.suppress(subprocess.TimeoutExpired):
                stdout, stderr = process.communicate(program.stdin.encode(), timeout=program.seconds)
                outcome = "error" if process.returncode else "done"
        if max(len(stdout), len(stderr)) > MAX_OUTPUT:
            outcome = "output"
        elif b"MemoryError" in stderr[-200:]:
            outcome = "memory"
        return Result(
            outcome=outcome,
            exit_code=process.returncode,
            stdout=stdout[:MAX_OUTPUT].decode("utf-8", "replace"),
            stderr=stderr[:MAX_OUTPUT].decode("utf-8", "replace"),
            seconds=time.monotonic() - begin,
        )

    def write(self, path: str, content: bytes) -> None:
        """See Sandbox."""
        self._files[path] = content

    def shell(self, *, seconds: float, memory_mb: int) -> Shell:
        """See Sandbox."""
        raise NotImplementedError

    def close(self) -> None:
        """See Sandbox."""

    def _start(
        self, program: Program, pipes: Mapping[str, int], stack: contextlib.ExitStack
    ) -> subprocess.Popen[bytes]:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="arl-unsafe-")))
        for name, content in {**self._files, **program.files}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        command = program.command or (sys.executable, "-I", "-S", "-c", program.code)
        limit = program.memory_mb << 20

        def bound() -> None:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

        return subprocess.Popen(
            command,
            cwd=folder,
            env={"PATH": os.environ.get("PATH", ""), **{name: str(number) for name, number in pipes.items()}},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=tuple(pipes.values()),
            start_new_session=True,
            preexec_fn=bound,  # noqa: PLW1509  # it makes one system call
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with its group, and reap it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
