"""Write files so that they survive a crash, and so that a file is either the old one or the new one, never a part."""

import os
import shutil
from pathlib import Path


def sync_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a directory, are stored, and learn of errors of a network file system."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes, sync: bool = False) -> None:
    """Write a file that appears under its name when it is complete. If that fails, the old one stays as it was.

    Args:
        sync: wait until it is stored.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(data)
        if sync:
            sync_to_disk(partial)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if sync:
        sync_to_disk(path.parent)


def remove_any(path: Path) -> None:
    """Remove a file, a link or a directory with all that is in it; nothing there is fine. A link is not followed."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
