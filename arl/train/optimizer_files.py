"""Write each rank's rows of AdamW's state to a file of its own, and read any rows of them again.

    rank r of n ─► optimizer-0000r-of-0000n.safetensors ─► rank q of m: the rows that it holds, from the files that do

Moments are cut as FSDP2 cuts their parameter (arl.models.weights.rows_of_part), so the number of files says which rows
each one has. No row travels between ranks when they are written.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from arl.errors import DataError
from arl.models.model_files import StoredTensor, file_of_part, tensors_in
from arl.models.weights import rows_of, rows_of_part

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
