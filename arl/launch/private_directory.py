"""Keep secrets in a directory that goes when the process that made it goes, however it ends.

    this process ── a pipe whose end only it holds ──► guard: this file as a program, in a session of its own
         │                                               │
      its end, by SIGKILL as well ─► the pipe ends ─► the guard removes the directory, and ends

If the guard is killed too, as with its whole node, `remove_abandoned` finds a directory that nobody has locked. The
guard uses the standard library only.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

END_OF_A_JOB = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
LOCK = "lock"  # file in a directory, which its owner has locked


@contextlib.contextmanager
def private_directory(place: Path, prefix: str) -> Iterator[Path]:
    """Yield a new directory in `place`, which only this user can read; it is gone after the block.

    Those of this prefix whose owners were killed are removed first.
    """
    from arl.launch.file_lock import open_lock, try_lock  # the guard does without

    remove_abandoned(place, prefix)
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=place.absolute()))  # of mode 0700
    with open_lock(directory / LOCK) as lock:  # before the guard starts: until then it would pass for an abandoned one
        assert try_lock(lock), f"{directory} is new, and locked by somebody else"
        with removed_with_us(directory):
            yield directory


def nearest_directory(path: Path) -> Path:
    """Return `path`, or the nearest directory above it that exists."""
    place = path.absolute()
    while not os.path.exists(place):
        place = place.parent
    return place


def remove_abandoned(place: Path, prefix: str) -> None:
    """Remove what `private_directory` has made in `place` for processes that are gone."""
    from arl.launch.file_lock import open_lock, try_lock

    for directory in place.glob(f"{prefix}*"):
        # Its owner removes it now, it is another user's, or what has the name of its lock is none of ours.
        with contextlib.suppress(OSError), open_lock(directory / LOCK) as lock:
            if try_lock(lock):
                shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def removed_with_us(directory: Path) -> Iterator[None]:
    """Remove a directory at the end of the block, or when this process ends before."""
    guard = _start_guard(directory.absolute())
    try:
        yield
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        with guard:  # which reaps it; it has nothing left to do, and may be stopped
            guard.kill()


def _start_guard(directory: Path) -> subprocess.Popen[bytes]:
    """Start the guard. It inherits that the signals which end a job are blocked, because it comes after all others."""
    held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, END_OF_A_JOB)
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(directory), str(held)],
            pass_fds=(held,),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(held)


def main(directory: str, held: str) -> None:
    """Wait until standard input ends, and remove the directory. The end of the process that made it is the deadline.

    Args:
        held: an open descriptor of it, because another run may have made its own under this name.
    """
    sys.stdin.buffer.read()
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.stat(directory), os.fstat(int(held))):
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
