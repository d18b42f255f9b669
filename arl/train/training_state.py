"""Copy this rank's share of a trainer's state to host memory: what a checkpoint blocks training for.

weights          shards ─► collect_share ─► whole tensors of this rank's share   because `from_pretrained` reads them
AdamW's state    rows of this rank, as they are                                   no rank needs them but through
                                                                                  arl.train.training_state
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from arl.errors import DataError
from arl.models.model_files import StoredTensor, file_of_part, tensors_in
from arl.models.weights import rows_of, rows_of_part
from arl.sync.buckets import TensorSpec, make_buckets
from arl.sync.loading import specs_of, unflatten, unflatten_all
from arl.sync.version_buffers import allocate_buckets
from arl.train.gathering import ShardGroup, collect_share, deal

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


OPTIMIZER = "optimizer"  # stem of the files' names
ANY_PART = re.compile(rf"{OPTIMIZER}-\d+-of-(\d+)\.safetensors")


def write_rows(state: Mapping[str, Tensor], directory: Path, part: int, parts: int) -> None:
    """Write the rows of rank `part`; a tensor of which it has no rows is left out."""
    held = {name: tensor for name, tensor in state.items() if tensor.numel()}
    save_file(held, directory / file_of_part(OPTIMIZER, part, parts))


class OptimizerFiles:
    """Read rows of the tensors that all files in `directory` hold together.

    files = OptimizerFiles(checkpoint)
    files.whole("step", ())                               ()
    files.read_rows("exp_avg.lm_head.weight", rows, place)

    Raises:
        DataError: a file is missing or damaged; when reading, a tensor is missing or has another shape.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        parts = _number_of_parts(directory)
        with self._reading():
            self._files = [tensors_in(directory / file_of_part(OPTIMIZER, part, parts)) for part in range(parts)]

    def whole(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor that every file holds as a whole."""
        stored = self._stored(self._files[0], name, shape)
        with self._reading(), safe_open(stored.file, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor

    def read_rows(self, name: str, num_rows: int, first: int, place: Tensor) -> None:
        """Read rows of a tensor of `num_rows` rows from number `first` on into `place`, (rows, …), cast."""
        end = first + len(place)
        for part, file in enumerate(self._files):
            stored_first, stored_end = rows_of_part(num_rows, len(self._files), part)
            begin = max(first, stored_first)
            stop = min(end, stored_end)
            if begin >= stop:
                continue
            stored = self._stored(file, name, (stored_end - stored_first, *place.shape[1:]))
            with self._reading():
                rows = rows_of(stored.file, name, begin - stored_first, stop - stored_first)
            place[begin - first : stop - first].copy_(rows)

    def _stored(self, file: Mapping[str, StoredTensor], name: str, shape: tuple[int, ...]) -> StoredTensor:
        stored = file.get(name)
        if stored is None:
            raise self._error(f"it lacks {name}")
        if stored.shape != shape:
            raise self._error(f"{name} has shape {list(stored.shape)}, not {list(shape)}")
        return stored

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (OSError, SafetensorError) as error:
            raise self._error(error) from error

    def _error(self, what: object) -> DataError:
        return DataError(
            f"{self._directory}: not the optimizer state of this model ({what}); resume from another checkpoint"
        )


def _number_of_parts(directory: Path) -> int:
    """Return the number of files that the names of those in `directory` speak of; 1 if there are none."""
    numbers = {int(found[1]) for file in directory.iterdir() if (found := ANY_PART.fullmatch(file.name))}
    return max(numbers, default=1)
