"""Remove a directory when the process that made it ends, however it ends.

    this process ── a pipe whose end only it holds ──► guard: this file as a program, in a session of its own
         │                                               │
      its end, by SIGKILL as well ─► the pipe ends ─► the guard removes the directory, and ends

Memory in /dev/shm is not given back by the end of a process. The guard uses the standard library only.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

END_OF_A_JOB = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


@contextlib.contextmanager
def removed_with_us(directory: Path) -> Iterator[None]:
    """Remove a directory at the end of the block, or when this process ends before."""
    guard = _start_guard(directory.absolute())
    try:
        yield
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        with guard:  # which reaps it; it has nothing left to do
            guard.kill()


def _start_guard(directory: Path) -> subprocess.Popen[bytes]:
    """Start the guard. It inherits that the signals which end a job are blocked, because it comes after all others."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, END_OF_A_JOB)
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


if __name__ == "__main__":
    sys.stdin.buffer.read()  # the end of the process that made the directory is the deadline
    if os.path.isdir(sys.argv[1]):
        shutil.rmtree(sys.argv[1], ignore_errors=True)
