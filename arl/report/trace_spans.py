"""Read when a run's steps and swaps were from its trace.json, which may still be growing or be torn."""

import json
from pathlib import Path
from typing import Any

from msgspec import Struct

from arl.metrics.run_files import TRACE_FILE

Times = tuple[float, float]  # begin and end, clock seconds
SWAP = "swap to "
STEP = "step "


class RunSpans(Struct, frozen=True):
    """Hold the spans of a run: of the step that trained version v, and of the swap to version v."""

    steps: dict[int, Times] = {}
    swaps: dict[int, Times] = {}


def read_spans(run: Path) -> RunSpans:
    """Read the spans of a run; a missing file has none, and a torn line is left out."""
    path = run / TRACE_FILE
    spans = RunSpans()
    if not path.exists():
        return spans
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if SWAP in line or STEP in line:  # a run has many more lines than these
                _add(spans, line)
    return spans


def _add(spans: RunSpans, line: str) -> None:
    try:
        event: dict[str, Any] = json.loads(line.strip().rstrip(","))
    except ValueError:
        return  # the last line of a run that lives or has died
    if event["ph"] != "X":
        return
    begin = event["ts"] / 1e6
    times = (begin, begin + event["dur"] / 1e6)
    name: str = event["name"]
    for prefix, kind in ((SWAP, spans.swaps), (STEP, spans.steps)):
        number = name.removeprefix(prefix)
        if name.startswith(prefix) and number.isdecimal():
            _widen(kind, int(number), times)


def _widen(spans: dict[int, Times], version: int, times: Times) -> None:
    """Join the span to that of the same name: several engines load the same version."""
    first = spans.get(version, times)
    spans[version] = (min(first[0], times[0]), max(first[1], times[1]))
