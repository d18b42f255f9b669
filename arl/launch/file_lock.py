"""Take the lock of a file that processes share, without waiting for it."""

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import IO, Any, BinaryIO

from arl.errors import InputError


def open_lock(path: Path) -> BinaryIO:
    """Open a file to lock it, and make it if it is missing. Nobody reads what is in it.

    Raises:
        OSError: it cannot be made, is a link, or is no regular file. Opening a FIFO would wait for its other end.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "r+b")


def require_lock(path: Path) -> BinaryIO:
    """Open a file to lock it, and make it if it is missing, in a directory that a user has named.

    Raises:
        InputError: it cannot be opened, or is no regular file.
    """
    try:
        return open_lock(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be opened ({error.strerror}); remove what has its name") from error


def try_lock(file: int | IO[Any], shared: bool = False) -> bool:
    """Lock an open file, and return whether no other process kept it from that.

    The kernel lets go of the lock when the file is closed, also by the end of this process, however it ends.

    Args:
        file: the open file, or its descriptor.
        shared: allow others to hold the lock as well, if they share it.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
