"""Publish weights as flat buckets in memory, from which rank 0 broadcasts them (arl.sync.broadcast_threads)."""

from collections.abc import Sequence

from torch import Tensor

from arl.sync.bucket_memory import allocate_buckets
from arl.sync.buckets import TensorSpec, make_buckets
from arl.sync.loading import specs_of, unflatten_all
from arl.sync.publication_target import State
from arl.sync.published_versions import BROADCAST_BUFFERS, BufferPlace
from arl.sync.version_buffers import LentBuckets, VersionBuffers
from arl.types import WeightUpdate

WRITE_SECONDS = 60.0  # longest wait for a buffer when whole tensors are given


class BroadcastTarget:
    """Keep the buckets of the newest version and of the one that engines are sent.

    Args:
        bucket_bytes: most bytes of a bucket; a larger tensor has a bucket of its own.
        place: the GPU of this process, or the host's memory.
    """

    def __init__(self, bucket_bytes: int, place: BufferPlace = "host") -> None:
        self._bucket_bytes = bucket_bytes
        self._place: BufferPlace = place
        self._specs: Sequence[TensorSpec] = ()
        self.buffers = VersionBuffers(BROADCAST_BUFFERS, self._allocate)

    def reserve(self, version: int, specs: Sequence[TensorSpec], seconds: float) -> list[Tensor]:
        """Return memory for the buckets of `version`, which the caller fills before `write`.

        Args:
            specs: of all tensors, the same for every version.

        Raises:
            TrainerError: no buffer was free within `seconds`.
        """
        self._specs = specs
        return self.buffers.reserve(version, seconds)

    def write(self, version: int, state: State) -> WeightUpdate:
        """See PublicationTarget. Copies `state`, unless the version was reserved and filled."""
        if not self.buffers.is_filling(version):
            specs = specs_of(state)
            flats = self.reserve(version, specs, WRITE_SECONDS)
            views = unflatten_all(flats, make_buckets(specs, self._bucket_bytes))
            for name, view in views.items():
                view.copy_(state[name])
        self.buffers.offer(version)
        return WeightUpdate(version, transport="broadcast")

    def discard(self, update: WeightUpdate) -> None:
        """Do nothing, because the memory is used again."""

    def claim(self, version: int, seconds: float) -> int:
        """Keep the newest version, `version` at least, for engines, and return it; see VersionBuffers.claim."""
        return self.buffers.claim(version, seconds)

    def flats(self, version: int) -> LentBuckets:
        """Return the buckets of a version that engines are sent now: (bytes,) uint8 each.

        They are not overwritten while somebody holds this list.

        Raises:
            KeyError: there is no such version.
        """
        return self.buffers.lend(version)

    def _allocate(self) -> list[Tensor]:
        return allocate_buckets(make_buckets(self._specs, self._bucket_bytes), self._place)
