"""Note what happens from when until when, anywhere in the controller's process, in trace.json, which Perfetto opens.

    with span("engine-0", "g17.3.0"): …  ─┐
    add_span("trainer", "publication of 4", …) ─► SpanSink of the running task ─► Trace: trace.json
    steps, waits and swaps of the recorder ───────────────────────────────────────┘    └─► read_spans: steps, swaps

All spans are on one clock, the controller's, in seconds. What another process or host does begins when the request is
sent, and ends when its answer has been read. So it is longer than the work itself by the way there and back, and by
what the event loop was busy with: usually a millisecond or two, never less than the work.

Spans of one process that overlap get lanes of their own, each the lowest that is free, so a viewer draws them one below
the other.
"""

import contextlib
import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from arl.clock import now
from arl.errors import DiskError
from arl.files import disk_code, explain_disk
from arl.metrics.run_files import TRACE_FILE, close_written, flushed_size, open_at

BUFFER_BYTES = 1 << 16  # every request is a line, so lines are handed to the operating system by the thousand
MAX_BYTES = 1 << 30  # which Perfetto still opens; a run may make a hundred million requests
BEGIN = b"["
END = b"\n]\n"
STEP_OR_SWAP = re.compile(rb'"name":"(step|swap to) ([0-9]+)"')

Times = tuple[float, float]  # begin and end


class TraceSpan(Struct, frozen=True):
    """Say what happened, from when until when."""

    process: str  # role, as in engine-0
    lane: str
    name: str
    begin: float
    end: float


class SpanSink:
    """Take the spans of one run. Those that come before its trace is open wait for it."""

    def __init__(self) -> None:
        self._waiting: list[TraceSpan] = []
        self.add: Callable[[TraceSpan], None] = self._waiting.append
        self._free = defaultdict[str, list[int]](list)  # process -> lanes below its highest that are free
        self._num_lanes = Counter[str]()

    def open(self, write: Callable[[TraceSpan], None]) -> None:
        """Hand spans to `write` from now on, first those that have waited."""
        self.add = write
        for span in self._waiting:
            write(span)

    def close(self) -> None:
        """Forget what comes from now on, because the trace is complete."""
        self.add = lambda span: None

    @contextlib.contextmanager
    def lane(self, process: str) -> Iterator[int]:
        """Reserve the lowest free lane of a process."""
        free = self._free[process]
        if not free:
            free.append(self._num_lanes[process])
            self._num_lanes[process] += 1
        number = heapq.heappop(free)
        try:
            yield number
        finally:
            heapq.heappush(free, number)


_sink: ContextVar[SpanSink | None] = ContextVar("span sink", default=None)


@contextlib.contextmanager
def recorded_spans() -> Iterator[SpanSink]:
    """Take the spans of this task, and of all that it starts, until the end of the block."""
    sink = SpanSink()
    token = _sink.set(sink)
    try:
        yield sink
    finally:
        _sink.reset(token)


@contextlib.contextmanager
def unrecorded_spans() -> Iterator[None]:
    """Take no spans of this task, and of all that it starts, until the end of the block."""
    token = _sink.set(None)
    try:
        yield
    finally:
        _sink.reset(token)


def current_sink() -> SpanSink | None:
    """Return what takes the spans of the running task; None: they are not recorded."""
    return _sink.get()


@contextlib.contextmanager
def span(process: str, name: str) -> Iterator[None]:
    """Note that the block ran, on a lane of its own. One that fails or is canceled is noted as well."""
    sink = _sink.get()
    if sink is None:
        yield
        return
    begin = now()
    with sink.lane(process) as lane:
        try:
            yield
        finally:
            sink.add(TraceSpan(process, str(lane), name, begin, now()))


def add_span(process: str, lane: str, name: str, begin: float, end: float) -> None:
    """Note something whose begin and end are known, on a lane of its own name."""
    sink = _sink.get()
    if sink is not None:
        sink.add(TraceSpan(process, lane, name, begin, end))


# ---- the file


class Trace:
    """Write the trace of a run, in Chrome's trace format.

    Args:
        run: directory of the run.
        size: bytes to keep of the file; 0 for a new run.
        max_bytes: size from which on only steps, waits and swaps are written.
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
            )

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
    dur: float


def read_spans(run: Path) -> RunSpans:
    """Read the spans of a run; a missing file has none, and a line that a crash has torn is left out.

    A version may be loaded again after a turn that made no new one; such spans are joined.
    """
    spans = RunSpans()
    if not (run / TRACE_FILE).exists():
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
            of_kind = spans.steps if found[1] == b"step" else spans.swaps
            version = int(found[2])
            begin = event.ts / 1e6
            end = (event.ts + event.dur) / 1e6
            before = of_kind.get(version, (begin, end))
            of_kind[version] = (min(before[0], begin), max(before[1], end))
    return spans
