"""Read a published version once on each node, and hand it on by shared memory. Standard library only.

    <publication directory>/v5      on the file system that all nodes share
         │  the first process of a node that asks: copy, then rename
         ▼
    /dev/shm/arl-weights-…/v5       locked by those that read it; removed for a newer one when nobody does

The folder in shared memory is named as the publication directory is. Every process that uses it holds a shared lock of
it, and whoever gets the exclusive lock removes it: the last one that ends, or a guard that waits for that from the
start, because processes may be killed. The kernel drops a lock when its holder ends, however it ends.

SGLang runs this file as well, under its own interpreter, and the guard is this file as a program.
"""

import contextlib
import errno
import fcntl
import fnmatch
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

SHARED_MEMORY = Path("/dev/shm")  # a memory-backed file system, where Linux has one
PREFIX = "arl-weights"  # of the names of folders with weights, there and on disk
PUBLISHED = "ARL_PUBLISHED"  # environment of engines on several nodes: the publication directory
NODE_COPY: Final = "node_copy"  # load format of a request that asks for the copy alone, while the engine generates
COPYING = "copying"  # folder whose lock the process has that copies
POLL_SECONDS = 0.02  # a lock of another process has no event
VERSION = re.compile("v[0-9]{1,10}")  # name of a published version
RESERVE = 32 << 20  # bytes of shared memory that are left to others


class HeldVersion:
    """Keep a version where it is while a process reads it, until it is released or collected as garbage."""

    def __init__(self, path: str, lock: int | None = None) -> None:
        self.path = path
        self._unlock = None if lock is None else weakref.finalize(self, os.close, lock)

    def release(self) -> None:
        """Let others remove the version."""
        if self._unlock is not None:
            self._unlock()

    def __enter__(self) -> "HeldVersion":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class NodeCopies:
    """Find published versions in the memory of this node, after copying them there if nobody has.

    with copies.hold("/run/arl-weights-x/v5") as held:
        load(held.path)                                     # /dev/shm/arl-weights-x/v5
    copies.close()

    A version is read where it was published if this node's memory has no room for it, or if the process that copies it
    does not finish in time. Each reason is said once.

    Args:
        published: the publication directory.
        seconds: longest wait for another process that copies.
        memory: a memory-backed file system of this node.
        say: takes a line for the log.
    """

    def __init__(
        self,
        published: Path,
        seconds: float,
        memory: Path = SHARED_MEMORY,
        say: Callable[[str], None] = print,
    ) -> None:
        self._published = published
        self._seconds = seconds
        self._memory = memory
        self._folder = memory / published.name
        self._say = say
        self._said: set[str] = set()
        self._not_copied: set[str] = set()  # names of versions that are read where they were published
        self._joining = threading.Lock()
        self._lock: int | None = None  # a descriptor, once this process uses the folder

    @classmethod
    def from_environment(cls, seconds: float) -> "NodeCopies | None":
        """Return the copies of this process's run; None: engines read versions where they are published."""
        published = os.environ.get(PUBLISHED)
        return None if published is None else cls(Path(published), seconds)

    def hold(self, path: str) -> HeldVersion:
        """Return where to read the version that was published at `path`. It blocks while it is copied.

        Other paths are returned as they are: the weights that a run begins with, and checkpoints.

        Raises:
            OSError: the published version cannot be read.
        """
        version = Path(path)
        is_published = version.parent == self._published and VERSION.fullmatch(version.name) is not None
        if not is_published or version.name in self._not_copied:
            return HeldVersion(path)
        try:
            return self._hold_copy(version)
        except _NotCopied as reason:
            self._not_copied.add(version.name)
            self._say_once(str(reason))
            return HeldVersion(path)

    def close(self) -> None:
        """Stop using the folder, and remove it if no other process uses it."""
        if self._lock is None:
            return
        os.close(self._lock)
        self._lock = None
        _remove_if_unused(self._folder)

    def _hold_copy(self, version: Path) -> HeldVersion:
        """Wait until the version is in memory, or copy it there."""
        deadline = time.monotonic() + self._seconds
        copy = self._folder / version.name
        while True:
            lock = self._lock_copy(version, copy) if self._join() else None
            if lock is not None:
                return HeldVersion(str(copy), lock)
            if time.monotonic() > deadline:
                raise _NotCopied(
                    f"{copy}: another process of this node has not copied it within {self._seconds:g} s; read from "
                    f"{version.parent}"
                )
            time.sleep(POLL_SECONDS)

    def _lock_copy(self, version: Path, copy: Path) -> int | None:
        """Lock the copy, and make it first unless it exists; None: another process copies, or has just removed it."""
        lock = open_locked(copy, shared=True)
        if lock is None and self._copy_alone(version, copy):
            lock = open_locked(copy, shared=True)
        return lock

    def _copy_alone(self, version: Path, copy: Path) -> bool:
        """Copy a version unless another process does. Return False if one does, or the lock is no folder."""
        with contextlib.suppress(FileExistsError):
            (self._folder / COPYING).mkdir()
        lock = open_locked(self._folder / COPYING)
        if lock is None:
            return False
        try:
            if not os.path.exists(copy):
                _remove_older(copy)
                _copy(version, copy)
        finally:
            os.close(lock)
        return True

    def _join(self) -> bool:
        """Use the folder, which is made unless it exists. False: another process removes it just now."""
        with self._joining:
            if self._lock is None:
                self._lock = self._make_or_open()
            return self._lock is not None

    def _make_or_open(self) -> int | None:
        """Return a lock that this process shares; None: another process removes the folder just now."""
        is_new = False
        try:
            remove_abandoned(self._memory)
            self._folder.mkdir(mode=0o700)
            is_new = True
        except FileExistsError:
            self._refuse_anothers()
        except OSError as error:
            raise _NotCopied(f"{self._folder}: {error.strerror}; read from {self._published}") from error
        lock = open_locked(self._folder, shared=True)
        if lock is not None and is_new:
            start_guard(self._folder)
        return lock

    def _refuse_anothers(self) -> None:
        """Raise _NotCopied if the folder is another user's, who could have put other weights there."""
        with contextlib.suppress(FileNotFoundError):
            if self._folder.lstat().st_uid != os.geteuid():
                raise _NotCopied(f"{self._folder} is another user's; read from {self._published}")

    def _say_once(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            self._say(reason)


class _NotCopied(Exception):
    """Say why a version is read where it was published."""


def open_locked(directory: Path, shared: bool = False) -> int | None:
    """Return an open file descriptor that locks `directory`; None: it is locked by others, another user's, or gone."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    with contextlib.suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.stat(directory)):  # it was not removed and made anew meanwhile
            return descriptor
    os.close(descriptor)
    return None


def abandoned_directories(place: Path) -> Iterator[Path]:
    """Yield the folders of weights in `place` that nobody uses any more, each locked while the caller looks at it."""
    for directory in _named(place, f"{PREFIX}-*"):
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


def start_guard(directory: Path) -> None:
    """Start a process that removes `directory` as soon as nobody uses it.

    It is no child of this process, which may kill its children at its end.
    """
    subprocess.run(
        [sys.executable, "-I", "-S", __file__, str(directory)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
        timeout=60,
    )


def guard(directory: Path) -> None:
    """Wait, in a session of its own, until nobody uses `directory`, and remove it. The users' ends are its deadline."""
    if os.fork():
        os._exit(0)
    os.setsid()
    with contextlib.suppress(FileNotFoundError):
        lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.close(lock)
        _remove_if_unused(directory)


def _remove_if_unused(directory: Path) -> None:
    lock = open_locked(directory)
    if lock is not None:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def _named(directory: Path, pattern: str) -> list[Path]:
    """Return what a directory has under names of a pattern. The guard runs without other modules of arl."""
    names: list[str] = []
    with contextlib.suppress(OSError):  # it is gone
        names = fnmatch.filter(os.listdir(directory), pattern)
    return [directory / name for name in names]


def _remove_older(copy: Path) -> None:
    """Remove versions older than `copy` that nobody reads."""
    for other in _named(copy.parent, "v*"):
        if _number(other) < _number(copy):
            _remove_if_unused(other)


def _number(version: Path) -> int:
    return int(version.name.removeprefix("v"))


def _copy(version: Path, copy: Path) -> None:
    """Copy a version. It is complete when it has its name.

    Raises:
        _NotCopied: there is no room.
        OSError: it cannot be read.
    """
    partial = copy.with_name(f".{copy.name}")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    files = list(version.iterdir())
    needed = sum(file.stat().st_size for file in files) + RESERVE
    no_room = f"{copy.parent.parent} has no room for {needed / 1e9:.2f} GB: weights are read from {version.parent}"
    if shutil.disk_usage(copy.parent).free < needed:
        raise _NotCopied(no_room)
    partial.mkdir()
    try:
        for file in files:
            shutil.copyfile(file, partial / file.name)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        if error.errno == errno.ENOSPC:
            raise _NotCopied(no_room) from error
        raise
    partial.rename(copy)


if __name__ == "__main__":
    guard(Path(sys.argv[1]))
