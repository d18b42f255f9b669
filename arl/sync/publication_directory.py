"""Make the directory in which a trainer hands published weights to the engines, in memory where it fits.

one node         shared memory, else the run directory ─┐
several nodes    the run directory, which all share     ─┴─► directory of this run, locked while the run lives,
                                                             removed at its end
"""

import contextlib
import fcntl
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from arl.config.recipe import Recipe
from arl.errors import InputError
from arl.launch.devices import free_memory
from arl.launch.scratch_directory import removed_with_us
from arl.models.model_files import tensors_in
from arl.sync.choose import held_versions, kept_versions, published_bytes, uses_files
from arl.types import Transport, WeightUpdate

SHARED_MEMORY = Path("/dev/shm")  # a memory-backed file system, where Linux has one
PREFIX = "arl-weights"  # of the folders' names


def open_locked(directory: Path, is_ours: bool = False) -> int | None:
    """Return an open file descriptor that locks `directory`; None: it is locked by others, another user's, or gone.

    Where the file system has no locks, only `is_ours` gives one: whether others use a directory cannot be known.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_free = True
    except BlockingIOError:
        is_free = False
    except OSError:
        is_free = is_ours
    with contextlib.suppress(FileNotFoundError):
        # It was not removed and made anew meanwhile.
        if is_free and os.path.samestat(os.fstat(descriptor), os.stat(directory)):
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


@contextlib.contextmanager
def publication_directory(
    recipe: Recipe,
    model: Path,
    run_directory: Path,
    lags: np.ndarray | None,
    transport: Transport,
    on_gpus: bool = False,
    several_nodes: bool = False,
) -> Iterator[Path]:
    """Yield a new directory: in memory if every kept version fits there and all processes see it, else on disk.

    The directory is removed at the end, and by its guard if this process is killed. If the guard is killed as well, the
    next run removes it.
    Transports that send from the trainer's own memory put next to nothing into it.

    Args:
        model: directory of the weights that the run begins with, which have the size of a version.
        lags: (steps, P) int32, of the recipe, see arl.rollout.exact_lag; None: staleness is bounded instead.
        on_gpus: the trainer's ranks compute on GPUs, whose memory ipc leaves the weights in.
        several_nodes: the run is on several nodes, all of which see the run directory.

    Raises:
        InputError: neither memory nor the disk has the room.
    """
    for place in (SHARED_MEMORY, run_directory):
        for abandoned in abandoned_directories(place):  # what killed runs have left
            # A process of the killed run may still write, so that not all can be removed: the next run does.
            shutil.rmtree(abandoned, ignore_errors=True)
    kept = kept_versions(recipe, lags)
    needed = _needed_bytes(recipe, model, kept, transport, on_gpus)
    sends_own_memory = not uses_files(transport)
    place = _choose_place(needed, run_directory, sends_own_memory, several_nodes)
    free = free_memory() if sends_own_memory else shutil.disk_usage(place).free
    if free < needed:
        where = "memory" if sends_own_memory else str(place)
        bound = "rollout.staleness" if lags is None else "rollout.lag"
        is_fixed = recipe.mode == "collocated" or recipe.rollout.is_unbounded
        remedy = "; make room" if is_fixed else f" ({bound} + 2); make room, or lower {bound}"
        raise InputError(
            f"{where}: publishing weights needs {needed / 1e9:.2f} GB free there, for {kept} versions at a time{remedy}"
        )
    directory, lock = make_locked_directory(place)
    try:
        with removed_with_us(directory):
            yield directory
    finally:
        os.close(lock)


def _needed_bytes(recipe: Recipe, model: Path, kept: int, transport: Transport, on_gpus: bool) -> int:
    """Return the bytes of all versions that are held at a time as files, or in host memory of the trainer.

    Whether the buffers of a broadcast lie on a GPU is known only when the model is loaded, so the host has room for
    them.
    """
    held = held_versions(transport, kept, "host", on_gpus)
    versions = held.in_files or held.on_host
    return versions * published_bytes(_num_parameters(model), recipe.train.dtype)


def _choose_place(needed: int, run_directory: Path, sends_own_memory: bool, several_nodes: bool) -> Path:
    """Return shared memory if it can be written to and has room for what will be written, else the run directory.

    Shared memory is of one node, so on several nodes files go to the run directory.
    """
    crosses_nodes = several_nodes and not sends_own_memory
    if crosses_nodes:
        return run_directory.absolute()  # a process elsewhere may have another working directory
    if not os.access(SHARED_MEMORY, os.W_OK):
        return run_directory
    has_room = sends_own_memory or shutil.disk_usage(SHARED_MEMORY).free > needed
    return SHARED_MEMORY if has_room else run_directory


def make_locked_directory(place: Path) -> tuple[Path, int]:
    """Make a directory, and return it with a file descriptor that keeps it locked until it is closed.

    The system closes the descriptor when this process ends, however it ends.
    """
    while True:  # another run may take it for an abandoned one, lock it first and remove it
        directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}-", dir=place))
        lock = open_locked(directory, is_ours=True)
        if lock is not None:
            return directory, lock


def _num_parameters(model: Path) -> int:
    """Return the number of a model's weights, whatever type they are stored in."""
    files = [file for file in model.iterdir() if file.suffix == ".safetensors" and "model" in file.stem]
    return sum(math.prod(tensor.shape) for file in files for tensor in tensors_in(file).values())


class PublishedVersions:
    """Remember the newest versions. Those that are known from the start lie in directories.

    >>> versions = PublishedVersions(2, {4: "model"})
    >>> versions.add(WeightUpdate(6, "v6"))
    >>> [versions.find(wanted) and versions.find(wanted).version for wanted in (4, 5, 6, 7)]
    [4, 6, 6, None]

    Args:
        kept: number of versions that are remembered.
        known: version -> directory of what is published already.
    """

    def __init__(self, kept: int, known: Mapping[int, str]) -> None:
        self._kept = kept
        self._updates: dict[int, WeightUpdate] = {}
        for version, path in known.items():
            self._updates[version] = WeightUpdate(version, path)

    def add(self, update: WeightUpdate) -> None:
        """Remember one more, and forget the oldest beyond `kept`."""
        self._updates[update.version] = update
        while len(self._updates) > self._kept:
            oldest = min(self._updates)
            del self._updates[oldest]

    def find(self, version: int) -> WeightUpdate | None:
        """Return `version` itself, or the next newer one; None: it is not published yet."""
        new_enough = [known for known in self._updates if known >= version]
        if not new_enough:
            return None
        return self._updates[min(new_enough)]
