"""Read what a finished run has written beside its trajectories, as far as a replay needs it.

summary.json ─► RunBounds of the rows     trace.json ─► spans of steps and swaps     metrics.jsonl ─► first accuracy
"""

import json
import math
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct, field

from arl.clock import LONGEST_TIME
from arl.config.recipe import Recipe
from arl.data.model_limits import Limits
from arl.errors import DataError
from arl.files import decode_json, open_regular, read_regular
from arl.metrics.run_files import METRICS_FILE, SUMMARY, TRACE_FILE
from arl.metrics.trajectory_reading import REMEDY
from arl.run.replay.verify_rows import RunBounds
from arl.types import TRAINED, Accuracy, Count

Value = TypeVar("Value")
Span = tuple[float, float]  # clock seconds: (begin, end)
SWAP = "swap to "
MOST_BYTES = 1 << 24  # of summary.json, of a line of metrics.jsonl, and of a short trace.json
BYTES_PER_STEP = 1 << 14  # of trace.json, which has half a kilobyte for each


class _Counts(Struct, frozen=True):
    """Read summary.json as far as it counts groups by fate."""

    groups: dict[str, Count]


class _Event(Struct, frozen=True):
    """Read an event of trace.json. Times are microseconds."""

    ph: str
    ts: float
    name: str = ""
    dur: float = 0.0


class _FirstRecord(Struct, frozen=True):
    """Read the first line of metrics.jsonl, which an evaluation before training has written if there was one."""

    step: Count
    accuracy: float | None = field(name="eval/held_out/accuracy", default=None)
    problems: Count = field(name="eval/held_out/problems", default=0)


def read_bounds(run: Path, recipe: Recipe, limits: Limits) -> RunBounds:
    """Return what the rows of a run cannot exceed, by its summary and its recipe."""
    counts = _read_json(run / SUMMARY, _Counts).groups
    trained = counts.get(TRAINED, 0)
    problems_per_step = recipe.rollout.problems_per_step
    if trained < 1 or trained % problems_per_step:
        raise DataError(
            f"{run / SUMMARY}: groups = {counts!r}: {trained} trained groups are not whole steps of "
            f"rollout.problems_per_step {problems_per_step}; {REMEDY}"
        )
    return RunBounds(
        admitted=sum(counts.values()),
        trained=trained,
        problems_per_step=problems_per_step,
        group_size=recipe.rollout.group_size,
        max_age=recipe.rollout.staleness,
        masks_truncated=recipe.reward.mask_truncated,
        limits=limits,
    )


def read_spans(run: Path, num_steps: int) -> dict[str, Span]:
    """Read the spans of trace.json, by name."""
    path = run / TRACE_FILE
    most_bytes = MOST_BYTES + num_steps * BYTES_PER_STEP
    spans = {}
    for number, event in enumerate(_read_json(path, list[_Event], most_bytes), start=1):
        if event.ph != "X":
            continue
        begin = event.ts / 1e6
        end = (event.ts + event.dur) / 1e6
        if not -LONGEST_TIME <= begin <= end <= LONGEST_TIME:
            raise DataError(
                f"{path} event {number}: {event.name} from {begin:g} to {end:g} s: a span ends after it begins, within "
                f"{LONGEST_TIME:g} s; {REMEDY}"
            )
        spans[event.name] = (begin, end)
    return spans


def step_spans(spans: dict[str, Span], num_steps: int, run: Path) -> list[Span]:
    """Return the span of each step."""
    for version in range(num_steps):
        if f"step {version}" not in spans:
            raise DataError(f"{run / TRACE_FILE}: has no step {version} of {num_steps}; {REMEDY}")
    return [spans[f"step {version}"] for version in range(num_steps)]


def swap_spans(spans: dict[str, Span], num_steps: int, run: Path) -> dict[int, Span]:
    """Map each version that engines loaded to the span of its swap."""
    swaps = {}
    for name, span in spans.items():
        if not name.startswith(SWAP):
            continue
        version = name.removeprefix(SWAP)
        if not (len(version) < 16 and version.isascii() and version.isdecimal() and 1 <= int(version) <= num_steps):
            raise DataError(f"{run / TRACE_FILE}: {name!r}: the versions of this run are 1 to {num_steps}; {REMEDY}")
        swaps[int(version)] = span
    return swaps


def read_first_accuracy(run: Path) -> Accuracy | None:
    """Read the evaluation before training; None: there was none."""
    path = run / METRICS_FILE
    try:
        with open_regular(path) as file:
            line = file.readline(MOST_BYTES)
        # Python's own reader, because Python has written it: a metric may be NaN, which JSON does not know.
        first = msgspec.convert(json.loads(line), _FirstRecord)
    except (OSError, ValueError, RecursionError, msgspec.ValidationError) as error:
        raise DataError(f"{path}:1: cannot be read ({error}); {REMEDY}") from error
    if first.accuracy is None:
        return None
    if not math.isfinite(first.accuracy):
        raise DataError(f"{path}:1: eval/held_out/accuracy = {first.accuracy}: it must be finite; {REMEDY}")
    return Accuracy(
        mean_reward=first.accuracy,
        problems=first.problems,
        version=first.step,
    )


def _read_json(path: Path, kind: type[Value], most_bytes: int = MOST_BYTES) -> Value:
    try:
        return decode_json(read_regular(path, most_bytes), kind)
    except (OSError, msgspec.DecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); {REMEDY}") from error
