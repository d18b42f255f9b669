"""Take the lock of a file that processes share, without waiting for it."""

import fcntl
from typing import IO, Any


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
