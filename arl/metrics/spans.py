"""Note what happens from when until when, anywhere in the controller's process, for the trace of a run.

    with span("engine-0", "g17.3.0"): …  ─┐
    add_span("trainer", "publication of 4", …) ─► SpanSink of the running task ─► Trace: trace.json

All spans are on one clock, the controller's. What another process or host does is placed by the messages that the
controller sends and receives: a span begins when the request is sent, and ends when its answer has been read. So it is
longer than the work itself by the way there and back, and by what the event loop was busy with: usually a millisecond
or two, never less than the work.

Spans of one process that overlap get lanes of their own, each the lowest that is free, so a viewer draws them one below
the other.
"""

import contextlib
import heapq
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from msgspec import Struct

from arl.clock import now

Argument = str | int | float


class TraceSpan(Struct, frozen=True):
    """Say what happened, from when until when, in clock seconds."""

    process: str  # role, as in engine-0
    lane: str
    name: str
    begin: float
    end: float
    arguments: dict[str, Argument] = {}


class SpanSink:
    """Take the spans of one run. Those that come before its trace is open wait for it."""

    def __init__(self) -> None:
        self._write: Callable[[TraceSpan], None] | None = None
        self._waiting: list[TraceSpan] = []
        self._free: dict[str, list[int]] = {}  # process -> lanes below its highest that are free
        self._num_lanes: dict[str, int] = {}

    def open(self, write: Callable[[TraceSpan], None]) -> None:
        """Hand spans to `write` from now on, first those that have waited."""
        self._write = write
        for span in self._waiting:
            write(span)
        self._waiting = []

    def close(self) -> None:
        """Forget what comes from now on, because the trace is complete."""
        self._write = lambda span: None

    def add(self, span: TraceSpan) -> None:
        """Write a span, or keep it until the trace is open."""
        if self._write is not None:
            self._write(span)
        else:
            self._waiting.append(span)

    @contextlib.contextmanager
    def lane(self, process: str) -> Iterator[int]:
        """Reserve the lowest free lane of a process."""
        free = self._free.setdefault(process, [])
        if free:
            number = heapq.heappop(free)
        else:
            number = self._num_lanes.get(process, 0)
            self._num_lanes[process] = number + 1
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
def span(process: str, name: str, **arguments: Argument) -> Iterator[None]:
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
            sink.add(TraceSpan(process, str(lane), name, begin, now(), arguments))


def add_span(process: str, lane: str, name: str, begin: float, end: float) -> None:
    """Note something whose begin and end are known, on a lane of its own name."""
    sink = _sink.get()
    if sink is not None:
        sink.add(TraceSpan(process, lane, name, begin, end))
