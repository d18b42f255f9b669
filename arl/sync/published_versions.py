"""Remember which published versions can be loaded, and from where; and count those that are kept. Torch-free."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from arl.config.recipe import Recipe
from arl.sync.buckets import ITEM_BYTES
from arl.types import Transport, WeightUpdate

BufferPlace = Literal["device", "host"]
BROADCAST_BUFFERS = 2  # arl.sync.version_buffers says why these are enough
FILE_BUFFERS = 2  # one is written to a file while the next snapshot is taken
SHARE_OF_FREE_MEMORY = 0.5  # of a GPU that holds weights and moments; gradients and activations need the rest


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


def kept_versions(recipe: Recipe, lags: np.ndarray | None) -> int:
    """Return how many published versions are kept at once: η + 2, for the reason that Publisher gives.

    Without a bound, Rollout.versions_ahead takes the place of η.

    Args:
        lags: (steps, P) int32, of the recipe, see arl.rollout.lag_table; then their largest takes the place of η.
            None: the recipe has no lag.
    """
    if recipe.mode == "collocated":
        return 2  # no step begins before the weights of its predecessor are loaded
    ahead = recipe.rollout.versions_ahead if lags is None else int(lags.max())
    return ahead + 2


class HeldVersions(NamedTuple):
    """Count the published versions in each kind of memory; each takes `published_bytes`."""

    on_device: int = 0  # memory of a GPU: of rank 0; with ipc, of every rank whose GPU an engine uses
    on_host: int = 0  # memory of the process of rank 0, pinned where there is a GPU
    in_files: int = 0  # files in the publication directory, one that is being written included


def held_versions(transport: Transport, kept: int, place: BufferPlace, on_gpus: bool) -> HeldVersions:
    """Return how many versions a transport holds at once.

    Args:
        kept: see kept_versions.
        place: of the buffers of a broadcast, see buffer_place.
        on_gpus: the trainer's ranks compute on GPUs.
    """
    if transport == "broadcast":
        on_device = place == "device" and on_gpus
        return HeldVersions(on_device=BROADCAST_BUFFERS) if on_device else HeldVersions(on_host=BROADCAST_BUFFERS)
    if transport == "ipc":
        return HeldVersions(on_device=kept) if on_gpus else HeldVersions(in_files=kept + 1)
    if transport == "file":
        return HeldVersions(on_host=FILE_BUFFERS, in_files=kept + 1)
    return HeldVersions(on_host=kept + 2)  # memory: kept, in work and waiting


def published_bytes(parameters: int, dtype: str) -> int:
    """Return the bytes of one published version.

    Args:
        parameters: of the model, a tied head counted once.
        dtype: train.dtype, float32 or bfloat16.

    >>> published_bytes(7_600_000_000, "bfloat16")
    15200000000
    """
    return parameters * ITEM_BYTES[dtype]


def buffer_place(version_bytes: int, free_bytes: int) -> BufferPlace:
    """Choose where the buffers of a broadcast lie: on the GPU if all of them fit into half of its free memory.

    Args:
        version_bytes: see published_bytes.
        free_bytes: of the GPU, when weights and moments are loaded.
    """
    needed = BROADCAST_BUFFERS * version_bytes
    return "device" if needed <= SHARE_OF_FREE_MEMORY * free_bytes else "host"
