"""Write metrics.jsonl and trace.json of a run. A resumed run cuts them back."""

import json
import os
from pathlib import Path
from typing import Any, TextIO

import msgspec

from arl.errors import InputError
from arl.metrics.names import Record, is_defined
from arl.metrics.spans import TraceSpan

BUFFER_BYTES = 1 << 16  # of the trace

# Names in a run directory.
METRICS_FILE = "metrics.jsonl"
TRAJECTORIES = "trajectories"
TRACE_FILE = "trace.json"
RECIPE = "recipe.yaml"
LOCK = "run.lock"
SUMMARY = "summary.json"
SWEEP_MANIFEST = "sweep.json"  # in the directory of a sweep, whose runs are at <arm>/<run>


def _open_at(path: Path, size: int, buffering: int = 1) -> TextIO:
    """Open a file to append to its first `size` bytes, and cut off what comes after them.

    Raises:
        InputError: the file is shorter.
    """
    file = path.open("a", buffering=buffering)
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


class TraceFile:
    """Write trace.json in Chrome's trace format, for Perfetto. Times are clock seconds.

    Every request of an episode is a line, so lines are handed to the operating system by the thousand, and by `flush`.

    Args:
        size: bytes to keep of the file, 0 for a new run.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._file = _open_at(path, size, BUFFER_BYTES)
        if size == 0:
            self._file.write("[")
        self._separator = "," if size > 1 else ""

    def span(self, track: str, name: str, start: float, end: float, **args: Any) -> None:
        """Add a span of time."""
        microseconds = max(end - start, 0.0) * 1e6
        self._write(start * 1e6, ph="X", tid=track, name=name, dur=microseconds, args=args)

    def add(self, span: TraceSpan) -> None:
        """Add a span of one process; see SpanWriter. Its times are rounded to a tenth of a microsecond."""
        self._write(
            round(span.begin * 1e6, 1),
            pid=span.process,
            ph="X",
            tid=span.lane,
            name=span.name,
            dur=round((span.end - span.begin) * 1e6, 1),
            args=span.arguments,
        )

    def count(self, name: str, at: float, **values: float) -> None:
        """Add a point of a counter."""
        self._write(at * 1e6, ph="C", tid=name, name=name, args=values)

    def _write(self, microseconds: float, **event: Any) -> None:
        line = msgspec.json.encode({"pid": "arl", "ts": microseconds, **event}).decode()
        self._file.write(f"{self._separator}\n{line}")
        self._separator = ","

    def flush(self) -> None:
        """Hand everything to the operating system, so that others read it."""
        self._file.flush()

    def cut(self) -> int:
        """Hand everything to the operating system and return the size of the file, bytes; its array stays open."""
        return _size(self._file)

    def close(self) -> None:
        self._file.write("\n]\n")
        self._file.close()
