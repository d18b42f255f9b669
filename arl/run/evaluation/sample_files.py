"""Keep the samples of one suite on disk while it is evaluated, so that a killed evaluation goes on where it was.

    add ─► rows in memory ─► every few seconds a part: <suite>.parts/NNNNNN.parquet ─► finish: <suite>.parquet

A part appears under its name when it is complete. A process that is killed loses what it has not flushed, which is a
few seconds of samples.
"""

import math
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from arl.data.parquet_files import read_parquet, write_parquet
from arl.errors import DataError
from arl.run.evaluation.sample import Sample
from arl.types import NOT_SAMPLED

ROWS_PER_PART = 1024  # at most; texts of more would fill the memory
REMEDY = "remove it, and its samples are drawn again"
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
        return os.path.exists(self.whole)

    def read(self, keys: Sequence[str], num_samples: int) -> list[Sample]:
        """Return every sample that was kept, without its texts.

        Args:
            keys: of the problems of the suite.
            num_samples: n, of each problem.

        Raises:
            DataError: a file cannot be read, or holds what no evaluation of the suite writes.
        """
        known = set(keys)
        seen: set[tuple[str, int]] = set()
        files = [self.whole] if self.is_finished else self._finished_parts()
        columns = [name for name in COLUMNS.names if name not in TEXTS]
        samples = []
        for file in files:
            for number, row in enumerate(_read(file, columns).to_pylist(), start=1):
                sample = _sample(row)
                if sample is None or sample.problem_id not in known or not 0 <= sample.sample < num_samples:
                    raise DataError(f"{file} row {number}: is no sample of this suite; {REMEDY}")
                if sample.key in seen:
                    raise DataError(f"{file} row {number}: sample {sample.sample} of {sample.key[0]} again; {REMEDY}")
                seen.add(sample.key)
                samples.append(sample)
        if self.is_finished and len(samples) != len(keys) * num_samples:
            raise DataError(f"{self.whole}: {len(samples)} of {len(keys) * num_samples} samples; {REMEDY}")
        versions = sorted({sample.policy_version for sample in samples} - {NOT_SAMPLED})
        if len(versions) > 1:
            raise DataError(f"{self.whole.parent}: samples of the versions {versions[0]} and {versions[1]}; {REMEDY}")
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
        table = pa.concat_tables(_read(part, COLUMNS.names) for part in self._finished_parts())
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
        parts = sorted(self._parts.glob("*.parquet"))
        return [part for part in parts if re.fullmatch("[0-9]{6,15}", part.stem)]


def _sample(row: dict[str, Any]) -> Sample | None:
    """Make a sample of a row; None if it cannot be one."""
    if any(value is None for value in row.values()):
        return None
    parts = dict(row.pop("parts"))
    sample = Sample(**row, parts=parts, prompt="", response="")
    if sample.num_tokens < 0 or sample.policy_version < NOT_SAMPLED:
        return None
    is_finite = all(value is not None and math.isfinite(value) for value in (sample.correct, *parts.values()))
    return sample if is_finite else None


def _read(file: Path, columns: Sequence[str]) -> pa.Table:
    schema = pa.schema([COLUMNS.field(name) for name in columns])
    return read_parquet(file, schema, REMEDY)


def _write(path: Path, table: pa.Table) -> None:
    """Write a file that appears under its name when it is complete."""
    partial = path.with_name(f".{path.name}")
    write_parquet(table, partial)
    os.replace(partial, path)
