"""Take the lock of a file that processes share, without waiting for it.

The kernel lets go of such a lock (flock) when the process that holds it ends, however it ends. Some file systems have
none: Lustre that is mounted without `-o flock`, NFS without lockd. Runs go on there without a lock.
"""

import contextlib
import errno
import fcntl
import warnings
from pathlib import Path
from typing import BinaryIO

from arl.errors import InputError

NOT_THERE = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}


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
    """Lock an open file until it is closed, and return whether no other process kept it from that."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NOT_THERE:
            raise
        warnings.warn(
            f"{file.name}: its file system has no locks ({error.strerror}): nothing keeps two processes from using the "
            "same directory at once",
            stacklevel=2,
        )
    return True


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock of a file; False where it is not there, or cannot be locked."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno not in NOT_THERE:
                raise
    return False
