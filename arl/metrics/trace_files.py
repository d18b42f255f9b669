"""Write when things happened in a run, in Chrome's trace format, for Perfetto. A resumed run cuts it back.

steps, waits, swaps ──────────► trace.json           of the whole run, three lines a step
   └─► with every TraceSpan ──► spans/000001.json    a part is closed when it is full, and the next one begins
                                spans/000002.json …  the oldest is removed when there are too many

A part holds everything of its time, so a viewer needs no other file. A run may make a hundred million requests, so the
parts are bounded: PART_BYTES · MOST_PARTS, which is 1 GiB. Who reads steps and swaps of a whole run reads trace.json.
Times are clock seconds.
"""

import os
import re
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from arl.errors import DiskError
from arl.launch.disk import disk_code, explain_disk, writing
from arl.launch.durable import remove_any
from arl.metrics.run_files import SPANS, TRACE_FILE, close_written, flushed_size, open_at
from arl.metrics.spans import TraceSpan

BUFFER_BYTES = 1 << 16
PART_BYTES = 64 << 20  # about 600,000 requests, which Perfetto opens in seconds
MOST_PARTS = 16
ANY_PART = re.compile("[0-9]{6,18}[.]json")
END = b"\n]\n"  # of the array in a file
OVERHEAD = len(b",\n") + len(END)  # of an event, if it is the last one


class TracePlace(Struct, frozen=True):
    """Say how far a trace was written at one instant. Arrays of the files are still open."""

    overview_bytes: int = 0  # of trace.json
    part: int = 1  # number of the newest
    part_bytes: int = 0


class TraceFile:
    """Write one file of events.

    Every request of an episode is a line, so lines are handed to the operating system by the thousand, and by `flush`.

    Args:
        size: bytes to keep of the file, 0 for a new one.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._file = open_at(path, size, BUFFER_BYTES)
        self.size = size
        if size == 0:
            self._append(b"[")
        self._separator = b",\n" if size > 1 else b"\n"

    def add(self, event: bytes) -> None:
        """Append one event, as JSON."""
        self._append(self._separator + event)
        self._separator = b",\n"

    def _append(self, text: bytes) -> None:
        self.size += len(text)
        try:  # without a context manager, because every request is an event
            self._file.buffer.write(text)
        except OSError as error:
            raise DiskError(explain_disk(self._path, disk_code(error))) from error

    def cut(self) -> int:
        """Hand everything to the operating system and return the size of the file, bytes; its array stays open."""
        return flushed_size(self._file)

    def close(self) -> None:
        self._append(END)
        close_written(self._file)


class SpanParts:
    """Write events to files of at most `part_bytes`, of which the newest `most` are kept.

    Args:
        directory: of the parts; made if it is missing.
        number: of the part to go on with; later ones are removed.
        size: bytes to keep of it. If it has fewer, because it was removed since or its host has crashed, the next part
            begins instead.
    """

    def __init__(self, directory: Path, number: int, size: int, part_bytes: int, most: int) -> None:
        with writing(directory):
            directory.mkdir(exist_ok=True)
        self._directory = directory
        self._part_bytes = part_bytes
        self._most = most
        for newer in self._numbers():
            if newer > number:
                remove_any(self._path(newer))
        has_lost = size > 0 and not self._reaches(number, size)
        self.number = number + 1 if has_lost else number
        self._file = TraceFile(self._path(self.number), 0 if has_lost else size)

    def add(self, event: bytes) -> None:
        """Append one event, to the next part if this one is full."""
        if self._file.size + len(event) + OVERHEAD > self._part_bytes:
            self._begin_next()
        self._file.add(event)

    def cut(self) -> int:
        """Hand everything to the operating system and return the size of the newest part."""
        return self._file.cut()

    def close(self) -> None:
        self._file.close()

    def _begin_next(self) -> None:
        self._file.close()
        self.number += 1
        for number in self._numbers():
            if number <= self.number - self._most:
                remove_any(self._path(number))
        self._file = TraceFile(self._path(self.number), 0)

    def _numbers(self) -> list[int]:
        return [int(file.stem) for file in sorted(self._directory.glob("*.json")) if ANY_PART.fullmatch(file.name)]

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:06d}.json"

    def _reaches(self, number: int, size: int) -> bool:
        path = self._path(number)
        return os.path.isfile(path) and path.stat().st_size >= size


class Trace:
    """Write the trace of a run; see SpanWriter.

    Args:
        run: directory of the run.
        at: what to keep of the files that are there; a new run has none.
    """

    def __init__(
        self, run: Path, at: TracePlace | None = None, *, part_bytes: int = PART_BYTES, most_parts: int = MOST_PARTS
    ) -> None:
        place = at or TracePlace()
        self._overview = TraceFile(run / TRACE_FILE, place.overview_bytes)
        self._parts = SpanParts(run / SPANS, place.part, place.part_bytes, part_bytes, most_parts)

    def span(self, track: str, name: str, start: float, end: float, **args: Any) -> None:
        """Add a step, a wait or a swap, which every file shows."""
        microseconds = max(end - start, 0.0) * 1e6
        event = _event(start * 1e6, ph="X", tid=track, name=name, dur=microseconds, args=args)
        self._overview.add(event)
        self._parts.add(event)

    def add(self, span: TraceSpan) -> None:
        """Add a span of one process; see SpanWriter. Its times are rounded to a tenth of a microsecond."""
        event = _event(
            round(span.begin * 1e6, 1),
            pid=span.process,
            ph="X",
            tid=span.lane,
            name=span.name,
            dur=round((span.end - span.begin) * 1e6, 1),
            args=span.arguments,
        )
        self._parts.add(event)

    def count(self, name: str, at: float, **values: float) -> None:
        """Add a point of a counter."""
        self._parts.add(_event(at * 1e6, ph="C", tid=name, name=name, args=values))

    def cut(self) -> TracePlace:
        """Hand everything to the operating system, so that others read it, and return how far that is."""
        return TracePlace(self._overview.cut(), self._parts.number, self._parts.cut())

    def close(self) -> None:
        self._overview.close()
        self._parts.close()


def _event(microseconds: float, **event: Any) -> bytes:
    return msgspec.json.encode({"pid": "arl", "ts": microseconds, **event})
