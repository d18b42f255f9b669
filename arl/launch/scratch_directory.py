"""Remove a directory when the process that made it ends, however it ends.

    this process ── a pipe whose end only it holds ──► guard: a shell in a session of its own
         │                                               │
      its end, by SIGKILL as well ─► the pipe ends ─► the guard removes the directory, and ends

Memory in /dev/shm is not given back by the end of a process.
"""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

# The end of a job sends these signals to every process; the guard comes after all others.
GUARD = """trap '' TERM INT HUP; echo; read line; rm -rf -- "$1" """


@contextlib.contextmanager
def removed_with_us(directory: Path) -> Iterator[None]:
    """Remove a directory at the end of the block, or when this process ends before."""
    with subprocess.Popen(
        ["/bin/sh", "-c", GUARD, "guard", str(directory.absolute())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as guard:
        assert guard.stdout is not None
        guard.stdout.readline()  # it ignores signals from now on
        try:
            yield
        finally:
            shutil.rmtree(directory, ignore_errors=True)
            guard.kill()  # it has nothing left to do
