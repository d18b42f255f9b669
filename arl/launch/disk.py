"""Say why a file cannot be written, in words that help."""

import contextlib
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from arl.errors import DiskError, InputError

FULL = {errno.ENOSPC, errno.EDQUOT}
IN_THE_WAY = {errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.ELOOP}
OF_THE_DISK = {
    *FULL,
    *(errno.EIO, errno.EROFS, errno.EFBIG, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ESTALE),
    *IN_THE_WAY,
}
CODE_IN_TEXT = re.compile(r"os error (\d+)")  # safetensors raises an error of its own


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write `path`, or a file that the error names, into a DiskError. What is not of the disk passes.

    Raises:
        DiskError: it cannot be written; says what is free, and what helps.
    """
    try:
        yield
    except Exception as error:
        code = disk_code(error)
        if code not in OF_THE_DISK:
            raise
        named = getattr(error, "filename", None)
        raise DiskError(explain_disk(Path(named) if isinstance(named, str) else path, code)) from error


def nearest_directory(path: Path) -> Path:
    """Return `path`, or the nearest directory above it that exists."""
    place = path.absolute()
    while not os.path.exists(place):
        place = place.parent
    return place


def refuse_unwritable(directory: Path) -> None:
    """Check that files can be made where output.directory is or will be, by making one that has no name.

    Raises:
        InputError: they cannot.
    """
    try:
        with tempfile.TemporaryFile(dir=nearest_directory(directory)):
            pass
    except OSError as error:
        raise InputError(
            f"output.directory {directory}: nothing can be written there ({error.strerror}); give another directory"
        ) from error


def disk_code(error: Exception) -> int | None:
    """Return the errno of a failed write, or None if it is no error of the operating system."""
    if isinstance(error, OSError):
        return error.errno
    found = CODE_IN_TEXT.search(str(error))
    return int(found[1]) if found else None


def explain_disk(path: Path, code: int | None) -> str:
    """Say that a file cannot be written, why, and what helps."""
    why = f" ({os.strerror(code)})" if code else ""
    if code in FULL:
        return f"{path}: cannot be written{why}: {_space(path)}: make room there"
    if code == errno.ENOENT and not os.path.exists(path.parent):
        return f"{path}: cannot be written: its directory {path.parent} was deleted"
    if code == errno.ENOENT:
        return f"{path}: was deleted, and the run needs it"
    if code in IN_THE_WAY:
        return f"{path}: cannot be written{why}: something else has its name, or that of its directory: move it away"
    return f"{path}: cannot be written{why}: see that its disk works and may be written by this user"


def _space(path: Path) -> str:
    """Say how much is free where a file lies, or would lie."""
    try:
        disk = shutil.disk_usage(path.parent)
    except OSError as error:
        return f"its disk does not answer ({error.strerror})"
    return f"{disk.free / 1e6:.1f} of {disk.total / 1e6:.0f} MB are free on {path.parent}"
