"""Write the files of a run: metrics.jsonl, trajectories/*.parquet and trace.json. A resumed run cuts them back."""

import json
import math
import os
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from arl.errors import InputError
from arl.metrics.names import Record, is_defined
from arl.types import TrajectoryGroup

_COLUMNS = pa.schema(
    {
        "fate": pa.string(),  # trained, or why it was lost
        "trained_at": pa.int64(),  # v of the step; null: lost
        "group_id": pa.int64(),
        "problem_id": pa.string(),
        "sample": pa.int64(),
        "dispatch_version": pa.int64(),
        "dispatch_time": pa.float64(),
        "arrival_version": pa.int64(),
        "arrival_time": pa.float64(),
        "prompt_length": pa.int64(),
        "reward": pa.float64(),  # null: not scored
        "truncated": pa.bool_(),
        "token_ids": pa.list_(pa.int32()),
        "behavior_logprobs": pa.list_(pa.float32()),
        "policy_versions": pa.list_(pa.int32()),
        "loss_mask": pa.list_(pa.bool_()),
    }
)


# Names in a run directory.
METRICS_FILE = "metrics.jsonl"
TRAJECTORIES = "trajectories"
TRACE_FILE = "trace.json"


def _open_at(path: Path, size: int) -> TextIO:
    """Open a file to append to its first `size` bytes, and cut off what comes after them.

    Raises:
        InputError: the file is shorter.
    """
    file = path.open("a", buffering=1)
    found = file.tell()
    if found < size:
        file.close()
        raise InputError(f"{path}: {found} bytes, and the checkpoint counts on {size}; resume from an older one")
    file.truncate(size)
    return file


def _size(file: TextIO) -> int:
    """Hand everything to the operating system and return the size of the file, bytes."""
    file.flush()
    return os.fstat(file.fileno()).st_size


class MetricsFile:
    """Write metrics.jsonl: one object per training step, and one per evaluation.

    Args:
        size: bytes to keep of the file, 0 for a new run.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._file = _open_at(path, size)

    def cut(self) -> int:
        """Hand everything to the operating system and return the size of the file, bytes."""
        return _size(self._file)

    def read(self) -> list[Record]:
        """Return all records in the file."""
        return [json.loads(line) for line in self._path.read_text().splitlines()]

    def write(self, record: Record) -> None:
        """Append one record, whose metrics must all be defined."""
        undefined = {name for name in record if not is_defined(name)}
        assert not undefined, f"undefined metrics: {undefined}"
        self._file.write(json.dumps(record) + "\n")

    def close(self) -> None:
        self._file.close()


class TrajectoryFiles:
    """Write trajectories/NNNNNN.parquet: one row per trajectory of a group, when the group is trained or lost.

    A file ends after `STEPS_PER_FILE` steps, or with the group that fills `ROWS_PER_FILE` rows.

    Args:
        num_files: files to keep, 0 for a new run.
    """

    STEPS_PER_FILE = 20
    ROWS_PER_FILE = 4096

    def __init__(self, directory: Path, num_files: int) -> None:
        self._directory = directory
        self.num_files = num_files
        directory.mkdir(parents=True, exist_ok=True)
        for path in directory.glob("*.parquet"):
            if path.stem.isdecimal() and int(path.stem) >= num_files:
                path.unlink()
        self._rows: list[dict[str, Any]] = []
        self._steps = 0

    def write(self, group: TrajectoryGroup, fate: str, trained_at: int | None) -> None:
        """Add the trajectories of a group.

        Args:
            fate: see arl.types.
            trained_at: the version v of the step that trains it; None: it was lost.
        """
        of_group = {name: getattr(group, name) for name in group.__struct_fields__ if name in _COLUMNS.names}
        of_group["fate"] = fate
        of_group["trained_at"] = trained_at
        of_group["problem_id"] = group.problem.id
        for sample, trajectory in enumerate(group.trajectories):
            row = {name: getattr(trajectory, name) for name in trajectory.__struct_fields__}
            row |= of_group
            row["sample"] = sample
            if math.isnan(trajectory.reward):
                row["reward"] = None
            self._rows.append(row)
        if len(self._rows) >= self.ROWS_PER_FILE:
            self.flush()

    def end_step(self) -> None:
        """Count a step towards the end of the file."""
        self._steps += 1
        if self._steps == self.STEPS_PER_FILE:
            self.flush()

    def flush(self) -> None:
        """End the file that is being filled, unless it is empty."""
        if self._rows:
            path = self._directory / f"{self.num_files:06d}.parquet"
            table = pa.Table.from_pylist(self._rows, _COLUMNS)
            pq.write_table(table, path)
            self.num_files += 1
        self._rows = []
        self._steps = 0


class TraceFile:
    """Write trace.json in Chrome's trace format, for Perfetto. Times are clock seconds.

    Args:
        size: bytes to keep of the file, 0 for a new run.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._file = _open_at(path, size)
        if size == 0:
            self._file.write("[")
        self._separator = "," if size > 1 else ""

    def span(self, track: str, name: str, start: float, end: float, **args: Any) -> None:
        """Add a span of time."""
        microseconds = max(end - start, 0.0) * 1e6
        self._write(start, ph="X", tid=track, name=name, dur=microseconds, args=args)

    def count(self, name: str, at: float, **values: float) -> None:
        """Add a point of a counter."""
        self._write(at, ph="C", tid=name, name=name, args=values)

    def _write(self, at: float, **event: Any) -> None:
        line = json.dumps({"pid": "arl", "ts": at * 1e6, **event})
        self._file.write(f"{self._separator}\n{line}")
        self._separator = ","

    def cut(self) -> int:
        """Hand everything to the operating system and return the size of the file, bytes; its array stays open."""
        return _size(self._file)

    def close(self) -> None:
        self._file.write("\n]\n")
        self._file.close()
