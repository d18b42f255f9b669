"""Read when a run's steps and swaps were from its trace.json, which may still be growing or be torn."""

import errno
import os
import re
from pathlib import Path

import msgspec
from msgspec import Struct

from arl.clock import LONGEST_TIME
from arl.errors import DataError
from arl.metrics.run_files import TRACE_FILE

Times = tuple[float, float]  # begin and end, clock seconds
SWAP = "swap to "
STEP = "step "
NUMBER = re.compile("[0-9]{1,15}")
BEGIN, END = b"[", b"]"  # lines around the events
LONGEST_LINE = 1 << 20  # bytes
MOST_BYTES = 1 << 30


class _Event(Struct, frozen=True):
    """Read an event of trace.json. Times are microseconds."""

    ph: str
    ts: float
    name: str
    dur: float = 0.0


class RunSpans(Struct, frozen=True):
    """Hold the spans of a run: of the step that trained version v, and of the swap to version v."""

    steps: dict[int, Times] = {}
    swaps: dict[int, Times] = {}
    is_whole: bool = False  # each line holds an event, and the end is there


def read_spans(run: Path) -> RunSpans:
    """Read the spans of a run; a missing file has none, and a line that holds no event is left out.

    Raises:
        DataError: it cannot be read at all.
    """
    spans = RunSpans()
    are_events = True
    text = b""
    try:
        with (run / TRACE_FILE).open("rb") as lines:
            if lines.seek(0, os.SEEK_END) > MOST_BYTES:
                raise OSError(errno.EFBIG, f"it is larger than {MOST_BYTES} bytes")
            lines.seek(0)
            while line := lines.readline(LONGEST_LINE):
                text = line.strip().rstrip(b",")
                if text not in (BEGIN, END):
                    are_events &= _add(spans, text)
    except FileNotFoundError:
        return spans
    except OSError as error:
        raise DataError(f"{run / TRACE_FILE}: cannot be read ({error.strerror})") from error
    return msgspec.structs.replace(spans, is_whole=are_events and text == END)


def _add(spans: RunSpans, text: bytes) -> bool:
    """Add the event of a line; return whether the line holds one, which the last one of a living run may not."""
    try:
        event: _Event = msgspec.json.decode(text, type=_Event)
    except msgspec.DecodeError:
        return False
    begin = event.ts / 1e6
    end = (event.ts + event.dur) / 1e6
    if not -LONGEST_TIME <= begin <= end <= LONGEST_TIME:
        return False
    for prefix, kind in ((SWAP, spans.swaps), (STEP, spans.steps)):
        if event.name.startswith(prefix):
            number = event.name.removeprefix(prefix)
            if not NUMBER.fullmatch(number):
                return False
            _widen(kind, int(number), (begin, end))
    return True


def _widen(spans: dict[int, Times], version: int, times: Times) -> None:
    """Join the span to that of the same name: a version is loaded again after a turn that made no new one."""
    first = spans.get(version, times)
    spans[version] = (min(first[0], times[0]), max(first[1], times[1]))
