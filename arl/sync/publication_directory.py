"""The folder in which a trainer hands published weights to the engines, in memory where it fits."""

import contextlib
import fcntl
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors import safe_open

from arl.config.recipe import Recipe
from arl.errors import InputError
from arl.launch.host_memory import free_memory
from arl.sync.published_versions import kept_versions
from arl.types import Transport

MEMORY = Path("/dev/shm")  # a memory-backed file system, where Linux has one
WEIGHTS = "arl-weights"


@contextlib.contextmanager
def publication_directory(
    recipe: Recipe, model: Path, run_directory: Path, lags: np.ndarray | None, transport: Transport
) -> Iterator[Path]:
    """Where weights are handed over: in memory if it holds every version that is kept, else on disk.

    What is sent out of the trainer's own memory leaves next to nothing there.

    Removed at the end; what a run that was killed could not remove, the next one does.

    Raises:
        InputError: neither has the room.
    """
    for home in (MEMORY, run_directory):
        for orphan in orphans(home):
            shutil.rmtree(orphan, ignore_errors=True)  # its trainer may still write, dying; the next run ends it
    # The version being written, and one in line.
    kept, bound = kept_versions(recipe, lags), "rollout.staleness" if lags is None else "rollout.lag"
    needed = _float32_bytes(model) * (kept + 2)
    rule = "; make room" if recipe.mode == "collocated" else f" ({bound} + 2); make room, or lower {bound}"
    in_process = transport in ("memory", "broadcast")
    in_memory = os.access(MEMORY, os.W_OK) and (in_process or shutil.disk_usage(MEMORY).free > needed)
    home = MEMORY if in_memory else run_directory
    if (free_memory() if in_process else shutil.disk_usage(home).free) < needed:
        raise InputError(
            f"{'memory' if in_process else home}: publishing weights needs {needed / 1e9:.2f} GB free there, for "
            f"{kept} versions at a time{rule}"
        )
    publications, held = _make_own(home)
    try:
        yield publications
    finally:
        shutil.rmtree(publications, ignore_errors=True)
        os.close(held)


def _make_own(home: Path) -> tuple[Path, int]:
    """A new folder, locked until its file is closed: when this process ends, however it ends."""
    while True:  # another run may be quicker to lock it, and take it for an orphan
        directory = Path(tempfile.mkdtemp(prefix=f"{WEIGHTS}-", dir=home))
        if (held := _lock(directory)) is not None:
            return directory, held


def _lock(directory: Path) -> int | None:
    """A file that locks the folder while it is open; None: it is another run's, another user's, or gone."""
    try:
        held = os.open(directory, os.O_RDONLY)
    except (FileNotFoundError, PermissionError):
        return None
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if directory.exists():
            return held
    os.close(held)
    return None


def _float32_bytes(model: Path) -> int:
    """Of its weights, in whatever type they are stored."""
    size = 0
    for file in model.iterdir():
        if file.suffix == ".safetensors" and "model" in file.stem:
            with safe_open(file, "np") as tensors:
                size += sum(4 * math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
    return size


def orphans(home: Path) -> Iterator[Path]:
    """Folders of weights in `home` whose run is gone, each locked while the caller looks at it."""
    for directory in home.glob(f"{WEIGHTS}-*"):
        if (held := _lock(directory)) is not None:
            try:
                yield directory
            finally:
                os.close(held)
