"""Copy what a trainer needs to resume, and write and read its files.

    shards of weights and moments ─► TrainingCopy.take: host memory ─► write: files of this rank ─► read_rows

Ranks share the work of a checkpoint. Each writes whole weights, those of its share, because `from_pretrained` reads
them; and its rows of AdamW's state as they are, because no rank needs them but through this module.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import save_file
from torch import Tensor

from arl.models.model_files import OPTIMIZER, file_of_part, write_index
from arl.models.weights import own_rows, rows_of, rows_of_part
from arl.sync.buckets import TensorSpec, bucket_bytes_of, make_buckets
from arl.sync.loading import specs_of, unflatten, unflatten_all
from arl.sync.version_buffers import allocate_buckets
from arl.train.gathering import ShardGroup, collect_share, deal

BUCKET_BYTES = 256 * 10**6  # of a round; two such are on the device meanwhile, or the largest tensor


def read_rows(files: Sequence[Path], name: str, parameter: Tensor, place: Tensor) -> None:
    """Read this rank's rows of a tensor, which is sharded as `parameter` is, into `place`, (rows, …), cast.

    Args:
        files: those of the ranks that have written it; each holds its rows.
    """
    first, end = own_rows(parameter)
    for part, file in enumerate(files):
        stored_first, stored_end = rows_of_part(len(parameter), len(files), part)
        begin = max(first, stored_first)
        stop = min(end, stored_end)
        if begin < stop:
            rows = rows_of(file, name, begin - stored_first, stop - stored_first)
            place[begin - first : stop - first].copy_(rows)


class TrainingState(NamedTuple):
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
        self._group = group
        self._shares = deal(specs, group.parts)
        self._buckets = [make_buckets(share, BUCKET_BYTES) for share in self._shares]
        self._memory: list[Tensor] = []  # of the buckets of this rank's share, then of the optimizer's rows

    def take(self, shards: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> TrainingState:
        """Copy whole weights, those of this rank's share, from the shards of all ranks, and `optimizer`. Collective.

        On a GPU they are here when its current stream has come to this point.

        Args:
            optimizer: float32, the same names and shapes every time.
        """
        if not self._group.has_rank_0:
            return TrainingState({}, {})
        buckets = self._buckets[self._group.part]
        rows = specs_of(optimizer)
        self._memory = self._memory or allocate_buckets([*buckets, rows], "host")
        *whole, for_rows = self._memory
        collect_share(shards, self._buckets, whole, self._group)
        copied = unflatten(for_rows, rows)
        for name, place in copied.items():
            place.copy_(optimizer[name], non_blocking=True)
        return TrainingState(unflatten_all(whole, buckets), copied)

    def write(self, state: TrainingState, path: Path) -> None:
        """Write this rank's files of a checkpoint; rank 0 says in an index which file holds which weight."""
        part = self._group.part
        parts = self._group.parts
        if part == 0 and parts > 1:
            names: dict[str, str] = {}
            for number, share in enumerate(self._shares):
                names |= dict.fromkeys((spec.name for spec in share), file_of_part("model", number, parts))
            write_index(path, names, sum(map(bucket_bytes_of, self._shares)))
        if state.weights:
            save_file(state.weights, path / file_of_part("model", part, parts), metadata={"format": "pt"})
        held = {name: tensor for name, tensor in state.optimizer.items() if tensor.numel()}
        save_file(held, path / file_of_part(OPTIMIZER, part, parts))
