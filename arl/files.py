"""Write files so that they survive a crash, say why one cannot be written, and lock files that processes share.

A file that `replace_file` writes is either the old one or the new one, never a part. The kernel lets go of a lock
(flock) when the process that holds it ends, however it ends. Some file systems have no locks: Lustre that is mounted
without `-o flock`, NFS without lockd. Runs go on there without a lock, and say so.
"""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from arl.errors import DiskError, InputError

FULL = {errno.ENOSPC, errno.EDQUOT}
CODE_IN_TEXT = re.compile(r"os error (\d+)")  # safetensors raises an error of its own


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write `path`, or a file that the error names, into a DiskError. Other errors pass.

    Raises:
        DiskError: it cannot be written; says what is free, and what helps.
    """
    try:
        yield
    except Exception as error:
        code = disk_code(error)
        if code is None:
            raise
        named = getattr(error, "filename", None)
        raise DiskError(explain_disk(Path(named) if isinstance(named, str) else path, code)) from error


def disk_code(error: Exception) -> int | None:
    """Return the errno of a failed write, or None if it is no error of the operating system."""
    if isinstance(error, OSError):
        return error.errno
    found = CODE_IN_TEXT.search(str(error))
    return int(found[1]) if found else None


def explain_disk(path: Path, code: int | None) -> str:
    """Say that a file cannot be written, why, and what helps."""
    remedy = "see that its disk works, that this user may write there, and what else has its name"
    if code in FULL:
        disk = shutil.disk_usage(path.parent)
        free = f"{disk.free / 1e6:.1f} of {disk.total / 1e6:.0f} MB are free on {path.parent}"
        remedy = f"{free}: make room there"
    why = f" ({os.strerror(code)})" if code else ""
    return f"{path}: cannot be written{why}: {remedy}"


def nearest_directory(path: Path) -> Path:
    """Return `path`, or the nearest directory above it that exists."""
    absolute = path.absolute()
    return next(place for place in (absolute, *absolute.parents) if os.path.exists(place))


def refuse_unwritable(directory: Path, field: str = "output.directory") -> None:
    """Check that files can be made where a directory is or will be, by making one that has no name.

    Args:
        field: what named it, for messages.

    Raises:
        InputError: they cannot.
    """
    try:
        with tempfile.TemporaryFile(dir=nearest_directory(directory)):
            pass
    except OSError as error:
        raise InputError(
            f"{field} {directory}: nothing can be written there ({error.strerror}); give another directory"
        ) from error


def sync_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a directory, are stored, and learn of errors of a network file system."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file that appears under its name when it is complete. If that fails, the old one stays as it was."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(data)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def remove_any(path: Path) -> None:
    """Remove a file, a link or a directory with all that is in it; nothing there is fine. A link is not followed."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def require_lock(path: Path) -> BinaryIO:
    """Open a file to lock it, and make it if it is missing, in a directory that a user has named.

    Raises:
        InputError: it cannot be opened.
    """
    try:
        return path.open("ab")
    except OSError as error:
        raise InputError(f"{path}: cannot be opened ({error.strerror}); remove what has its name") from error


def try_lock(file: BinaryIO) -> bool:
    """Lock an open file until it is closed, without waiting, and return whether no other process holds its lock."""
    try:
        return _flock(file, fcntl.LOCK_EX)
    except OSError as error:  # ENOSYS, ENOLCK, EOPNOTSUPP, or the kernel's own 524, by file system
        print(
            f"{file.name}: its file system has no locks ({error.strerror}): nothing keeps two processes from using the "
            "same directory at once",
            file=sys.stderr,
        )
        return True


@contextlib.contextmanager
def held_lock(path: Path, taken: str) -> Iterator[None]:
    """Hold the lock of a file, which is made if it is missing.

    Raises:
        InputError: another process holds it, as `taken` says; or the file cannot be opened.
    """
    with require_lock(path) as file:
        if not try_lock(file):
            raise InputError(taken)
        yield


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock of a file; False where it is not there, or cannot be locked."""
    try:
        with path.open("rb") as file:
            return not _flock(file, fcntl.LOCK_SH)
    except OSError:
        return False


def _flock(file: BinaryIO, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
