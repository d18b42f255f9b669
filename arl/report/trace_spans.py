"""Read when a run's steps and swaps were from its trace.json, which may still be growing or be torn."""

import errno
import os
import re
from pathlib import Path

import msgspec
from msgspec import Struct

from arl.clock import LONGEST_TIME
from arl.errors import DataError
from arl.files import decode_json, open_regular
from arl.metrics.run_files import TRACE_FILE

Times = tuple[float, float]  # begin and end, clock seconds
SWAP = "swap to "
STEP = "step "
NUMBER = re.compile("[0-9]{1,15}")
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


def read_spans(run: Path) -> RunSpans:
    """Read the spans of a run; a missing file has none, and a torn line is left out."""
    spans = RunSpans()
    try:
        with open_regular(run / TRACE_FILE) as lines:
            if lines.seek(0, os.SEEK_END) > MOST_BYTES:
                raise OSError(errno.EFBIG, f"it is larger than {MOST_BYTES} bytes")
            lines.seek(0)
            while line := lines.readline(LONGEST_LINE):
                if SWAP.encode() in line or STEP.encode() in line:  # a run has many more lines than these
                    _add(spans, line)
    except FileNotFoundError:
        return spans
    except OSError as error:
        raise DataError(f"{run / TRACE_FILE}: cannot be read ({error.strerror})") from error
    return spans


def _add(spans: RunSpans, line: bytes) -> None:
    try:
        event: _Event = decode_json(line.strip().rstrip(b","), _Event)
    except msgspec.DecodeError:
        return  # the last line of a run that lives or has died
    begin = event.ts / 1e6
    end = begin + event.dur / 1e6
    if event.ph != "X" or not -LONGEST_TIME <= begin <= end <= LONGEST_TIME:
        return
    for prefix, kind in ((SWAP, spans.swaps), (STEP, spans.steps)):
        number = event.name.removeprefix(prefix)
        if event.name.startswith(prefix) and NUMBER.fullmatch(number):
            _widen(kind, int(number), (begin, end))


def _widen(spans: dict[int, Times], version: int, times: Times) -> None:
    """Join the span to that of the same name: several engines load the same version."""
    first = spans.get(version, times)
    spans[version] = (min(first[0], times[0]), max(first[1], times[1]))
