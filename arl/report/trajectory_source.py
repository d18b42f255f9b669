"""Read a few rows of a run's trajectory files, however many and however large the files are.

    open_source: footers ─► TrajectorySource ─► read_scalars ─► choose rows ─► rows_by_file ─► read_rows

A file that is torn, damaged or of an older arl is named in a note, and the others are read.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from msgspec import Struct

from arl.errors import DataError
from arl.metrics.trajectory_reading import num_rows_of, read_batches, read_trajectories, trajectory_files

T = TypeVar("T")

LARGE_FILE = 64 * 2**20  # bytes, uncompressed; of a larger file only the first rows are read


class TrajectoryFile(Struct, frozen=True):
    """Hold what the footer of a trajectory file says."""

    path: Path
    num_rows: int
    num_readable: int  # rows that are read at most, from the first on


class TrajectorySource(Struct, frozen=True, kw_only=True):
    """Name a run whose trajectories are shown and the arm whose color it has, and hold its files."""

    directory: Path  # of the run
    label: str
    arm: int
    model: Path | None  # that its recipe names; None: none
    files: list[TrajectoryFile]  # the intact ones, in order
    notes: list[str]  # on each of the others

    @property
    def num_rows(self) -> int:
        """Return the episodes in all files."""
        return sum(file.num_rows for file in self.files)


def open_source(
    directory: Path,
    label: str,
    columns: Sequence[str],
    arm: int = 0,
    model: Path | None = None,
) -> TrajectorySource:
    """Read the footers of a run's trajectory files, which must have these columns."""
    files = []
    notes = []
    for path in trajectory_files(directory):
        try:
            files.append(_opened(path, columns))
        except DataError as error:
            notes.append(left_out(error))
    if not files and not notes:
        notes.append(f"{directory}: no complete trajectory file; none is shown")
    return TrajectorySource(
        directory=directory,
        label=label,
        arm=arm,
        model=model,
        files=files,
        notes=notes,
    )


def _opened(path: Path, columns: Sequence[str]) -> TrajectoryFile:
    num_rows, num_bytes = num_rows_of(path, columns)
    share = min(1.0, LARGE_FILE / max(num_bytes, 1))
    num_readable = int(num_rows * share)
    return TrajectoryFile(path, num_rows, num_readable)


def read_scalars(file: TrajectoryFile, columns: Sequence[str]) -> pa.Table:
    """Read whole columns of the readable rows of a file; they should be small.

    Raises:
        DataError: the file is damaged.
    """
    return read_trajectories(file.path, columns).slice(0, file.num_readable)


def rows_by_file(places: Iterable[tuple[TrajectoryFile, int]]) -> dict[TrajectoryFile, list[int]]:
    """Map each file to its rows among these places, so that each file is read once."""
    by_file: dict[TrajectoryFile, list[int]] = {}
    for file, row in places:
        by_file.setdefault(file, []).append(row)
    return by_file


def read_rows(file: TrajectoryFile, rows: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
    """Read some rows of a file, in ascending order, and decode no more of it than needed.

    Raises:
        DataError: the file is damaged.
    """
    wanted = sorted(set(rows))
    if not wanted:
        return []
    found: list[dict[str, Any]] = []
    start = 0
    for batch in read_batches(file.path, columns):
        end = start + batch.num_rows
        here = [row - start for row in wanted if start <= row < end]
        found += batch.take(pa.array(here, pa.int64())).to_pylist()
        start = end
        if len(found) == len(wanted):
            return found
    raise DataError(f"{file.path}: has {start} rows, fewer than its footer says")


def left_out(error: DataError) -> str:
    """Write the note on a damaged file."""
    return f"{error} (it is left out)"


def spread(candidates: Sequence[T], count: int) -> list[T]:
    """Choose `count` of the candidates at even distances, in their order; all if there are no more.

    >>> spread("abcdefghij", 4)
    ['a', 'd', 'g', 'j']
    """
    if len(candidates) <= count:
        return list(candidates)
    if count == 0:
        return []
    if count == 1:
        return [candidates[len(candidates) // 2]]
    distance = (len(candidates) - 1) / (count - 1)
    return [candidates[round(number * distance)] for number in range(count)]
