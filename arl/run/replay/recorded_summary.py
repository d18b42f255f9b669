"""Read what a finished run has written beside its trajectories, as far as a replay needs it.

summary.json ─► RunBounds of the rows     trace.json ─► spans of steps and swaps     metrics.jsonl ─► first accuracy
"""

from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from arl.config.recipe import Recipe
from arl.data.model_limits import Limits
from arl.errors import DataError
from arl.files import decode_json, open_regular, read_regular
from arl.metrics.record_file import decode_record, is_count, step_of
from arl.metrics.run_files import METRICS_FILE, SUMMARY, TRACE_FILE
from arl.metrics.trace_files import RunSpans
from arl.metrics.trajectory_reading import REMEDY
from arl.run.replay.verify_rows import RunBounds
from arl.types import TRAINED, Accuracy, Count

Value = TypeVar("Value")
ACCURACY = "eval/held_out/accuracy"
PROBLEMS = "eval/held_out/problems"
MOST_BYTES = 1 << 24  # of summary.json, and of a line of metrics.jsonl


class _Counts(Struct, frozen=True):
    """Read summary.json as far as it counts groups by fate."""

    groups: dict[str, Count]


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


def require_spans(spans: RunSpans, num_steps: int, run: Path) -> None:
    """Check that a trace has lost nothing that a replay needs.

    Raises:
        DataError: it is damaged, lacks a step, or has a swap to a version that no step made.
    """
    path = run / TRACE_FILE
    for version in range(num_steps):
        if version not in spans.steps:
            raise DataError(f"{path}: has no step {version} of {num_steps}; {REMEDY}")
    for version in spans.swaps:
        if not 1 <= version <= num_steps:
            raise DataError(f"{path}: 'swap to {version}': the versions of this run are 1 to {num_steps}; {REMEDY}")
    if not spans.is_whole:
        raise DataError(f"{path}: is torn or damaged; {REMEDY}")


def read_first_accuracy(run: Path) -> Accuracy | None:
    """Read the evaluation before training; None: there was none."""
    path = run / METRICS_FILE
    try:
        with open_regular(path) as file:
            first = decode_record(file.readline(MOST_BYTES))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error}); {REMEDY}") from error
    if first is None:
        raise DataError(f"{path}:1: holds no record; {REMEDY}")
    if ACCURACY not in first:
        return None
    accuracy = first[ACCURACY]
    problems = first.get(PROBLEMS, 0.0)
    if not isinstance(accuracy, float) or not is_count(problems):
        raise DataError(
            f"{path}:1: {ACCURACY} = {accuracy}, {PROBLEMS} = {problems}: must be a finite number and a count; {REMEDY}"
        )
    return Accuracy(
        mean_reward=accuracy,
        problems=int(problems),
        version=step_of(first),
    )


def _read_json(path: Path, kind: type[Value]) -> Value:
    try:
        return decode_json(read_regular(path, MOST_BYTES), kind)
    except (OSError, msgspec.DecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); {REMEDY}") from error
