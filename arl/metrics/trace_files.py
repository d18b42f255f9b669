"""Write when things happened in a run to trace.json, which Perfetto opens, and read its steps and swaps again.

steps, waits, swaps, counters and every TraceSpan ─► trace.json, in Chrome's trace format ─► read_spans: steps, swaps

Times are clock seconds. A resumed run cuts the file back. A run may make a hundred million requests, so from MAX_BYTES
on only steps, waits and swaps are written.
"""

import os
import re
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from arl.errors import DiskError
from arl.files import disk_code, explain_disk
from arl.metrics.run_files import TRACE_FILE, close_written, flushed_size, open_at
from arl.metrics.spans import TraceSpan

BUFFER_BYTES = 1 << 16  # every request is a line, so lines are handed to the operating system by the thousand
MAX_BYTES = 1 << 30  # which Perfetto still opens
BEGIN = b"["
END = b"\n]\n"
STEP_OR_SWAP = re.compile(rb'"name":"(step|swap to) ([0-9]+)"')

Times = tuple[float, float]  # begin and end, clock seconds


class Trace:
    """Write the trace of a run.

    Args:
        run: directory of the run.
        size: bytes to keep of the file; 0 for a new run.
        max_bytes: size from which on spans of single processes are left out.
    """

    def __init__(self, run: Path, size: int = 0, max_bytes: int = MAX_BYTES) -> None:
        self._path = run / TRACE_FILE
        self._file = open_at(self._path, size, BUFFER_BYTES)
        self._size = size
        self._max_bytes = max_bytes
        if size == 0:
            self._append(BEGIN)
        self._separator = b",\n" if size > len(BEGIN) else b"\n"

    def span(self, track: str, name: str, start: float, end: float, **args: Any) -> None:
        """Add a step, a wait or a swap."""
        self._add(start * 1e6, ph="X", tid=track, name=name, dur=max(end - start, 0.0) * 1e6, args=args)

    def add(self, span: TraceSpan) -> None:
        """Add a span of one process. Its times are rounded to a tenth of a microsecond."""
        if self._size < self._max_bytes:
            self._add(
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
        if self._size < self._max_bytes:
            self._add(at * 1e6, ph="C", tid=name, name=name, args=values)

    def flush(self) -> int:
        """Hand everything to the operating system and return the size of the file, bytes; its array stays open."""
        return flushed_size(self._file)

    def close(self) -> None:
        self._append(END)
        close_written(self._file)

    def _add(self, microseconds: float, **event: Any) -> None:
        self._append(self._separator + msgspec.json.encode({"pid": "arl", "ts": microseconds, **event}))
        self._separator = b",\n"

    def _append(self, text: bytes) -> None:
        self._size += len(text)
        try:  # without a context manager, because every request is an event
            self._file.buffer.write(text)
        except OSError as error:
            raise DiskError(explain_disk(self._path, disk_code(error))) from error


class RunSpans(Struct, frozen=True):
    """Hold the spans of a run: of the step that trained version v, and of the swap to version v."""

    steps: dict[int, Times] = {}
    swaps: dict[int, Times] = {}


class _Event(Struct, frozen=True):
    ts: float  # microseconds, like dur
    dur: float = 0.0


def read_spans(run: Path) -> RunSpans:
    """Read the spans of a run; a missing file has none, and a line that a crash has torn is left out."""
    spans = RunSpans()
    if not os.path.exists(run / TRACE_FILE):
        return spans
    with (run / TRACE_FILE).open("rb") as lines:
        for line in lines:
            found = STEP_OR_SWAP.search(line)
            if found is None:
                continue
            try:
                event = msgspec.json.decode(line.strip().rstrip(b","), type=_Event)
            except msgspec.DecodeError:
                continue
            kind = spans.steps if found[1] == b"step" else spans.swaps
            _widen(kind, int(found[2]), (event.ts / 1e6, (event.ts + event.dur) / 1e6))
    return spans


def _widen(spans: dict[int, Times], version: int, times: Times) -> None:
    """Join the span to that of the same name: a version is loaded again after a turn that made no new one."""
    first = spans.get(version, times)
    spans[version] = (min(first[0], times[0]), max(first[1], times[1]))
