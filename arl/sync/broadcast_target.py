"""Publish weights as flat buckets in host memory, from which rank 0 broadcasts them (arl.sync.broadcast_threads)."""

import torch
from torch import Tensor

from arl.sync.buckets import bucket_bytes_of, make_buckets
from arl.sync.loading import flatten, specs_of
from arl.sync.publication_target import State
from arl.types import WeightUpdate


class BroadcastTarget:
    """Keep the buckets of every version. Where there is a GPU, their pages are pinned, so that it copies from them.

    Args:
        bucket_bytes: most bytes of a bucket; a larger tensor has a bucket of its own.
    """

    def __init__(self, bucket_bytes: int) -> None:
        self._bucket_bytes = bucket_bytes
        self._flats: dict[int, list[Tensor]] = {}

    def write(self, version: int, state: State) -> WeightUpdate:
        """See PublicationTarget."""
        pinned = torch.cuda.is_available()
        buckets = make_buckets(specs_of(state), self._bucket_bytes)
        flats = []
        for bucket in buckets:
            flat = torch.empty(bucket_bytes_of(bucket), dtype=torch.uint8, pin_memory=pinned)
            flatten(state, bucket, flat)
            flats.append(flat)
        self._flats[version] = flats
        return WeightUpdate(version, transport="broadcast")

    def discard(self, update: WeightUpdate) -> None:
        """See PublicationTarget."""
        del self._flats[update.version]

    def flats(self, version: int) -> list[Tensor]:
        """Return the buckets of a version that is not discarded: (bytes,) uint8 each."""
        return self._flats[version]
