"""Copy this rank's share of a trainer's state to host memory: what a checkpoint blocks training for.

weights          shards ─► collect_share ─► whole tensors of this rank's share   because `from_pretrained` reads them
AdamW's state    rows of this rank, as they are                                   no rank needs them but through
                                                                                  arl.train.optimizer_files
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from arl.sync.buckets import TensorSpec, make_buckets
from arl.sync.loading import specs_of, unflatten, unflatten_all
from arl.sync.version_buffers import allocate_buckets
from arl.train.dealing import collect_share, deal
from arl.train.gathering import ShardGroup

BUCKET_BYTES = 256 * 10**6  # of a round; two such are on the device meanwhile, or the largest tensor


@dataclass(frozen=True)
class TrainingState:
    """Hold a copy of this rank's share of what a trainer needs to resume; empty on ranks of another copy."""

    weights: dict[str, Tensor]  # float32, whole tensors by parameter name
    optimizer: dict[str, Tensor]  # this rank's rows of AdamW's moments, its number of updates, and the loss scale


class TrainingCopy:
    """Hold the host memory of a copy, which the next copy uses again: allocated once, and pinned if there is a GPU.

    Args:
        specs: every parameter as a whole, float32.
        group: the ranks that share the parameters.
    """

    def __init__(self, specs: Sequence[TensorSpec], group: ShardGroup) -> None:
        self.group = group
        self.shares = deal(specs, group.parts)
        self._buckets = [make_buckets(share, BUCKET_BYTES) for share in self.shares]
        self._own_buckets = self._buckets[group.part] if group.has_rank_0 else []
        self._whole: list[Tensor] | None = None
        self._rows: Tensor | None = None

    def copy_weights(self, shards: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy whole tensors, those of this rank's share, from the shards of all ranks. Collective.

        On a GPU they are here when its current stream has come to this point.
        """
        if self._whole is None:
            self._whole = allocate_buckets(self._own_buckets, "host")
        collect_share(shards, self._buckets, self._whole, self.group)
        return unflatten_all(self._whole, self._own_buckets)

    def copy_rows(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy `tensors`, float32, the same names and shapes every time; on a GPU like copy_weights."""
        if not self.group.has_rank_0:
            return {}
        specs = specs_of(tensors)
        if self._rows is None:
            (self._rows,) = allocate_buckets([specs], "host")
        copied = unflatten(self._rows, specs)
        for name, place in copied.items():
            place.copy_(tensors[name], non_blocking=True)
        return copied
