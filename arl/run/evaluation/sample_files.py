"""Keep the samples of one suite on disk while it is evaluated, so that a killed evaluation goes on where it was.

    add ─► rows in memory ─► every few seconds a part: <suite>.parts/NNNNNN.parquet ─► finish: <suite>.parquet

A part appears under its name when it is complete. A process that is killed loses what it has not flushed, which is a
few seconds of samples.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from arl.errors import DataError
from arl.run.evaluation.sample import Sample

ROWS_PER_PART = 1024  # at most; texts of more would fill the memory
TEXTS = ("prompt", "response")  # not needed for scores

COLUMNS = pa.schema(
    {
        "problem_id": pa.string(),
        "sample": pa.int32(),
        "prompt": pa.string(),
        "response": pa.string(),
        "answer": pa.string(),
        "extracted": pa.string(),
        "correct": pa.float64(),
        "parts": pa.map_(pa.string(), pa.float64()),
        "num_tokens": pa.int32(),
        "truncated": pa.bool_(),
        "error": pa.string(),
        "policy_version": pa.int32(),
    }
)


class SampleFiles:
    """Write and read the samples of one suite.

    Args:
        directory: exists.
        name: of the suite, as a file name.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.whole = directory / f"{name}.parquet"
        self._parts = directory / f"{name}.parts"
        self._rows: list[dict[str, Any]] = []
        self._next_part = 1 + max((int(part.stem) for part in self._finished_parts()), default=-1)

    @property
    def is_finished(self) -> bool:
        """Return whether all samples are in the one file."""
        return self.whole.exists()

    def read(self) -> list[Sample]:
        """Return every sample that was kept, without its texts.

        Raises:
            DataError: a file cannot be read.
        """
        files = [self.whole] if self.is_finished else self._finished_parts()
        columns = [name for name in COLUMNS.names if name not in TEXTS]
        samples = []
        for file in files:
            for row in _read(file, columns).to_pylist():
                row["parts"] = dict(row["parts"])
                samples.append(Sample(**row, prompt="", response=""))
        return samples

    def add(self, sample: Sample) -> None:
        """Take a sample, and write a part if there are enough of them."""
        self._rows.append(msgspec.structs.asdict(sample))
        if len(self._rows) >= ROWS_PER_PART:
            self.flush()

    def flush(self) -> None:
        """Write what was added since the last part as a part of its own."""
        if not self._rows:
            return
        self._parts.mkdir(exist_ok=True)
        _write(self._parts / f"{self._next_part:06d}.parquet", pa.Table.from_pylist(self._rows, COLUMNS))
        self._next_part += 1
        self._rows = []

    def finish(self, keys: Sequence[str]) -> None:
        """Join all parts in one file, problem by problem, and remove them.

        Args:
            keys: of the problems, in the order of the suite.
        """
        self.flush()
        table = pa.concat_tables(_read(part, None) for part in self._finished_parts())
        position = {key: i for i, key in enumerate(keys)}
        positions = [position[key] for key in table["problem_id"].to_pylist()]
        rank = list(zip(positions, table["sample"].to_pylist(), strict=True))
        order = sorted(range(len(rank)), key=rank.__getitem__)
        _write(self.whole, table.take(order))
        self.remove_parts()

    def remove_parts(self) -> None:
        """Remove the parts, which are in the one file."""
        shutil.rmtree(self._parts, ignore_errors=True)

    def _finished_parts(self) -> list[Path]:
        return sorted(self._parts.glob("[0-9]*.parquet"))


def _read(file: Path, columns: list[str] | None) -> pa.Table:
    try:
        return pq.read_table(file, columns=columns, schema=COLUMNS)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{file}: cannot be read ({error}); remove it, and its samples are drawn again") from error


def _write(path: Path, table: pa.Table) -> None:
    """Write a file that appears under its name when it is complete."""
    partial = path.with_name(f".{path.name}")
    pq.write_table(table, partial)
    os.replace(partial, path)
