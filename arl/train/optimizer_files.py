"""Write each rank's rows of AdamW's state to a file of its own, and read any rows of them again.

    rank r of n ─► optimizer-0000r-of-0000n.safetensors ─► rank q of m: the rows that it holds, from the files that do

Moments are cut as FSDP2 cuts their parameter (arl.models.weights.rows_of_part), so the number of files says which rows
each one has. No row travels between ranks when they are written.
"""

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from arl.errors import DataError
from arl.models.model_files import file_of_part
from arl.models.weights import rows_of_part

OPTIMIZER = "optimizer"  # stem of the files' names
ANY_PART = re.compile(rf"{OPTIMIZER}-\d+-of-(\d+)\.safetensors")


def write_rows(state: Mapping[str, Tensor], directory: Path, part: int, parts: int) -> None:
    """Write the rows of rank `part`; a tensor of which it has no rows is left out."""
    held = {name: tensor for name, tensor in state.items() if tensor.numel()}
    save_file(held, directory / file_of_part(OPTIMIZER, part, parts))


class OptimizerFiles:
    """Read rows of the tensors that all files in `directory` hold together.

    with OptimizerFiles(checkpoint) as files:
        files.whole("step", ())                               ()
        files.read_rows("exp_avg.lm_head.weight", rows, place)

    Raises:
        DataError: on entering, a file is missing or damaged; when reading, a tensor is missing or has another shape.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: list[Any] = []
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> Self:
        parts = _number_of_parts(self._directory)
        with contextlib.ExitStack() as opened:
            for part in range(parts):
                path = self._directory / file_of_part(OPTIMIZER, part, parts)
                try:
                    self._files.append(opened.enter_context(safe_open(path, "pt")))
                except (OSError, SafetensorError) as error:
                    raise self._error(error) from error
            self._opened = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def whole(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor that every file holds as a whole: counts, which are finite and at least 0.

        It shares its memory with others of the file.
        """
        try:
            stored = self._files[0].get_slice(name)
        except SafetensorError as error:
            raise self._error(error) from error
        if stored.get_shape() != list(shape):  # read only then, because another may be of any size
            raise self._error(f"{name} has shape {stored.get_shape()}, not {list(shape)}")
        tensor: Tensor = self._files[0].get_tensor(name)
        if not bool((tensor.isfinite() & (tensor >= 0)).all()):
            raise self._error(f"{name} is {tensor.tolist()}, and must be finite and at least 0")
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
            try:
                stored = file.get_slice(name)
            except SafetensorError as error:
                raise self._error(error) from error
            expected = [stored_end - stored_first, *place.shape[1:]]
            if stored.get_shape() != expected:
                raise self._error(f"{name} has shape {stored.get_shape()}, not {expected}")
            rows = stored[begin - stored_first : stop - stored_first]
            place[begin - first : stop - first].copy_(rows)

    def _error(self, what: object) -> DataError:
        return DataError(
            f"{self._directory}: not the optimizer state of this model ({what}); resume from another checkpoint"
        )


def _number_of_parts(directory: Path) -> int:
    """Return the number of files that the names of those in `directory` speak of; 1 if there are none."""
    numbers = {int(found[1]) for file in directory.iterdir() if (found := ANY_PART.fullmatch(file.name))}
    return max(numbers, default=1)
