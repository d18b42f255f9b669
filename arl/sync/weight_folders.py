"""Find the folders of published weights in shared memory or on disk, each locked while its run lives.

The kernel drops a lock when its holder ends, however it ends: a folder that nobody locks is removed by the next run.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # a memory-backed file system, where Linux has one
PREFIX = "arl-weights"  # of the folders' names


def open_locked(directory: Path) -> int | None:
    """Return an open file descriptor that locks `directory`; None: it is locked by others, another user's, or gone."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    with contextlib.suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.stat(directory)):  # it was not removed and made anew meanwhile
            return descriptor
    os.close(descriptor)
    return None


def abandoned_directories(place: Path) -> Iterator[Path]:
    """Yield the folders of weights in `place` that nobody uses any more, each locked while the caller looks at it."""
    for directory in place.glob(f"{PREFIX}-*"):
        lock = open_locked(directory)
        if lock is None:
            continue
        try:
            yield directory
        finally:
            os.close(lock)


def remove_abandoned(place: Path) -> None:
    """Remove what killed runs have left in `place`."""
    for directory in abandoned_directories(place):
        # A process of the killed run may still write, so that not all can be removed. The next run removes the rest.
        shutil.rmtree(directory, ignore_errors=True)
