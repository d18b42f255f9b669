"""Copy this rank's share of a trainer's state to host memory, write it beside training, and read rows of it again.

weights          shards ─► collect_share ─► whole tensors of this rank's share   because `from_pretrained` reads them
AdamW's state    rows of this rank, as they are                                   no rank needs them but through
                                                                                  arl.train.training_state
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from arl.models.model_files import file_of_part, write_index
from arl.models.weights import rows_of, rows_of_part
from arl.sync.buckets import TensorSpec, bucket_bytes_of, make_buckets
from arl.sync.loading import specs_of, unflatten, unflatten_all
from arl.sync.version_buffers import allocate_buckets
from arl.train.gathering import ShardGroup, collect_share, deal

BUCKET_BYTES = 256 * 10**6  # of a round; two such are on the device meanwhile, or the largest tensor
OPTIMIZER = "optimizer"  # stem of the files' names


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
        self._own_buckets = self._buckets[group.part] if group.has_rank_0 else []
        self._whole: list[Tensor] | None = None
        self._rows: Tensor | None = None

    def copy_weights(self, shards: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy whole tensors, those of this rank's share, from the shards of all ranks. Collective.

        On a GPU they are here when its current stream has come to this point.
        """
        if self._whole is None:
            self._whole = allocate_buckets(self._own_buckets, "host")
        collect_share(shards, self._buckets, self._whole, self._group)
        return unflatten_all(self._whole, self._own_buckets)

    def copy_rows(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy `tensors`, float32, the same names and shapes every time; on a GPU like copy_weights."""
        if not self._group.has_rank_0:
            return {}
        specs = specs_of(tensors)
        if self._rows is None:
            (self._rows,) = allocate_buckets([specs], "host")
        copied = unflatten(self._rows, specs)
        for name, place in copied.items():
            place.copy_(tensors[name], non_blocking=True)
        return copied

    def write(self, state: TrainingState, path: Path) -> None:
        """Write this rank's files of a checkpoint; rank 0 says in an index which file holds which weight."""
        part = self._group.part
        parts = self._group.parts
        if part == 0 and parts > 1:
            names = {}
            for number, share in enumerate(self._shares):
                names |= dict.fromkeys((spec.name for spec in share), file_of_part("model", number, parts))
            write_index(path, names, sum(bucket_bytes_of(share) for share in self._shares))
        if state.weights:
            save_file(state.weights, path / file_of_part("model", part, parts), metadata={"format": "pt"})
        held = {name: tensor for name, tensor in state.optimizer.items() if tensor.numel()}
        save_file(held, path / file_of_part(OPTIMIZER, part, parts))


class OptimizerFiles:
    """Read rows of the tensors that the optimizer's files of a checkpoint hold together.

    files = OptimizerFiles(checkpoint)
    files.whole("step")
    files.read_rows("exp_avg.lm_head.weight", num_rows, first, place)
    """

    def __init__(self, checkpoint: Path) -> None:
        self._files = sorted(checkpoint.glob(f"{OPTIMIZER}*.safetensors"))  # in the order of the ranks

    def whole(self, name: str) -> Tensor:
        """Return a tensor that every file holds as a whole."""
        with safe_open(self._files[0], framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor

    def read_rows(self, name: str, num_rows: int, first: int, place: Tensor) -> None:
        """Read rows of a tensor of `num_rows` rows from number `first` on into `place`, (rows, …), cast."""
        end = first + len(place)
        for part, file in enumerate(self._files):
            stored_first, stored_end = rows_of_part(num_rows, len(self._files), part)
            begin = max(first, stored_first)
            stop = min(end, stored_end)
            if begin < stop:
                rows = rows_of(file, name, begin - stored_first, stop - stored_first)
                place[begin - first : stop - first].copy_(rows)
