"""Wait until files are stored, so that they survive a crash, and so that errors of a network file system are seen."""

import os
from pathlib import Path


def sync_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a directory, are stored.

    Raises:
        OSError: the file system could not store them.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
