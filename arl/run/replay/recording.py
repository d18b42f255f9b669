"""Read back what a finished run left behind: every group with its fate, and when everything happened.

trajectories/*.parquet ─► groups, with the times of their arrival        trace.json ─► times of steps and swaps
"""

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from msgspec import Struct

from arl.config.recipe import Recipe
from arl.errors import DataError, InputError
from arl.run.problem_sets import run_problems, run_suites
from arl.run.starting_model import starting_codec
from arl.types import FAILED, NOT_SAMPLED, Accuracy, Problem, Trajectory, TrajectoryGroup

Span = tuple[float, float]  # clock seconds: (begin, end)
_TOKENS = {
    "token_ids": np.int32,
    "behavior_logprobs": np.float32,
    "policy_versions": np.int32,
    "loss_mask": np.bool_,
}
_OF_GROUP = {"fate", "trained_at", "group_id", "problem_id", "dispatch_version", "dispatch_time"}
_OF_REWARD = {"reward", "unshaped_reward", "reward_parts", "reward_error"}
NEEDED = {*_TOKENS, *_OF_GROUP, *_OF_REWARD, "arrival_version", "arrival_time", "prompt_length", "truncated"}
_NO_PROBLEM = Problem("")  # of a group that was lost before its first token, because that leaves no trajectory


class RecordedGroup(Struct, frozen=True):
    """Hold a group of the recorded run, and what became of it."""

    group: TrajectoryGroup  # as it ended
    fate: str  # "trained", or how it was lost
    place: int | None  # in the order of training, v·P + its place in batch v; None: lost

    @property
    def is_scored(self) -> bool:
        """Return whether the group finished: every episode has its reward."""
        trajectories = self.group.trajectories
        if not trajectories:
            return False
        return not any(math.isnan(trajectory.reward) for trajectory in trajectories)

    @property
    def versions(self) -> tuple[int, int]:
        """Return the oldest and the newest version that sampled a token of it, in the loss or not."""
        versions = np.concatenate([t.policy_versions for t in self.group.trajectories])
        sampled = versions[versions != NOT_SAMPLED]
        return int(sampled.min()), int(sampled.max())


class Recording(Struct, frozen=True):
    """Hold everything that a replay needs of a run. All times are seconds of the recorded run's clock."""

    groups: tuple[RecordedGroup, ...]  # by group_id: in the order of admission
    start: float  # of training: the first admission
    step_seconds: tuple[float, ...]  # (steps,)
    loaded: dict[int, float]  # version -> when every engine had loaded it
    publish_seconds: float  # median, from the end of a step until engines begin to load what it made
    load_seconds: float  # median
    before: Accuracy | None  # the evaluation before training

    @property
    def seconds(self) -> float:
        """Return the time from the first admission to the last arrival or swap."""
        arrivals = [recorded.group.arrival_time for recorded in self.groups]
        last = max([*arrivals, *self.loaded.values()])
        return last - self.start


def read_recording(run: Path, recipe: Recipe) -> Recording:
    """Read the finished run in directory `run`, of which `recipe` is the recipe.

    Raises:
        InputError: it recorded no trajectories.
        DataError: a file is missing or damaged, or the problems are no longer what they were.
    """
    if not recipe.output.trajectories:
        raise InputError(f"{run}: recorded with output.trajectories=false; a replay needs a run with true")
    groups = _groups(run, recipe)
    begun = [recorded.group for recorded in groups if recorded.group.trajectories]
    spans = _spans(run)
    num_steps = _num_steps(groups, run, recipe, spans)
    steps = [spans[f"step {version}"] for version in range(num_steps)]
    swaps = _swaps(spans)
    loaded = {version: end for version, (_, end) in swaps.items()}
    for group in begun:  # the engines of a resumed run begin with its checkpoint, which is no swap
        loaded.setdefault(group.dispatch_version, group.dispatch_time)
    return Recording(
        groups=tuple(groups),
        start=min(group.dispatch_time for group in begun),
        step_seconds=tuple(end - begin for begin, end in steps),
        loaded=loaded,
        publish_seconds=_median(_publish_seconds(steps, swaps)),
        load_seconds=_median([end - begin for begin, end in swaps.values()]),
        before=_before(run),
    )


def _swaps(spans: dict[str, Span]) -> dict[int, Span]:
    """Map each version that engines loaded to the span of its swap."""
    prefix = "swap to "
    return {int(name.removeprefix(prefix)): span for name, span in spans.items() if name.startswith(prefix)}


def _publish_seconds(steps: list[Span], swaps: dict[int, Span]) -> list[float]:
    """List the seconds from the end of each step until engines began to load what it made."""
    seconds = []
    for version, (begin_of_load, _) in swaps.items():
        if version <= len(steps):
            _, end_of_step = steps[version - 1]
            seconds.append(max(begin_of_load - end_of_step, 0.0))
    return seconds


def _median(seconds: list[float]) -> float:
    return median(seconds) if seconds else 0.0


def _groups(run: Path, recipe: Recipe) -> list[RecordedGroup]:
    sets = run_problems(recipe, run_suites(recipe), starting_codec(recipe))
    problems = {problem.id: problem for problem in sets.training}
    rows: dict[int, list[dict[str, Any]]] = {}
    for path in sorted((run / "trajectories").glob("*.parquet")):
        for row in _rows(path):
            rows.setdefault(row["group_id"], []).append(row)
    if not rows:
        raise DataError(f"{run}/trajectories: holds no trajectory; give the directory of a run as it was written")
    taken: Counter[int] = Counter()
    groups = {group_id: _group(own, problems, taken, run, recipe) for group_id, own in rows.items()}
    return [groups.get(group_id) or lost_at_once(group_id) for group_id in range(max(groups) + 1)]


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    known = set(pq.read_schema(path).names)
    if missing := NEEDED - known:
        raise DataError(f"{path}: lacks {', '.join(sorted(missing))}; an older arl wrote it: record the run again")
    table = pq.read_table(path, columns=sorted(NEEDED))
    tokens = {name: _arrays(table.column(name).combine_chunks(), dtype) for name, dtype in _TOKENS.items()}
    rest = table.drop_columns(list(_TOKENS))
    for i, row in enumerate(rest.to_pylist()):
        arrays = {name: column[i] for name, column in tokens.items()}
        yield row | arrays


def _arrays(column: Any, dtype: type) -> list[np.ndarray]:
    """Return one array for each row of a column of lists."""
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    ends = np.cumsum(lengths)
    values = column.flatten().to_numpy(zero_copy_only=False)
    return np.split(values.astype(dtype), ends[:-1])


def _group(
    rows: list[dict[str, Any]],
    problems: dict[str, Problem],
    taken: Counter[int],
    run: Path,
    recipe: Recipe,
) -> RecordedGroup:
    """Make a group of its rows, in the order of training; `taken` counts the groups of each step so far."""
    first = rows[0]
    problem = problems.get(first["problem_id"])
    if problem is None:
        raise DataError(
            f"{run}: problem {first['problem_id']} of group {first['group_id']} is not in "
            f"{recipe.data.path or recipe.data.task}; replay with the problems it was recorded with"
        )
    version = first["trained_at"]
    place = None
    if version is not None:
        place = version * recipe.rollout.problems_per_step + taken[version]
        taken[version] += 1
    group = TrajectoryGroup(
        group_id=first["group_id"],
        problem=problem,
        trajectories=tuple(map(_trajectory, rows)),
        dispatch_version=first["dispatch_version"],
        dispatch_time=first["dispatch_time"],
        arrival_version=first["arrival_version"],
        arrival_time=first["arrival_time"],
    )
    return RecordedGroup(group, first["fate"], place)


def _trajectory(row: dict[str, Any]) -> Trajectory:
    tokens = {name: row[name] for name in _TOKENS}
    return Trajectory(
        prompt_length=row["prompt_length"],
        reward=_nan_if_null(row["reward"]),
        unshaped_reward=_nan_if_null(row["unshaped_reward"]),
        truncated=row["truncated"],
        reward_parts=dict(row["reward_parts"]),
        reward_error=row["reward_error"],
        **tokens,
    )


def _nan_if_null(value: float | None) -> float:
    return math.nan if value is None else value


def lost_at_once(group_id: int) -> RecordedGroup:
    """Make a group that failed before its first token, and so has no row in the files."""
    group = TrajectoryGroup(
        group_id=group_id,
        problem=_NO_PROBLEM,
        trajectories=(),
        dispatch_version=0,
        dispatch_time=-math.inf,
        arrival_version=0,
        arrival_time=-math.inf,
    )
    return RecordedGroup(group, FAILED, None)


def _num_steps(
    groups: list[RecordedGroup],
    run: Path,
    recipe: Recipe,
    spans: dict[str, Span],
) -> int:
    """Return the number of steps, each with its P groups and its span."""
    places = sorted(recorded.place for recorded in groups if recorded.place is not None)
    steps, left_over = divmod(len(places), recipe.rollout.problems_per_step)
    are_whole = places == list(range(len(places))) and not left_over
    are_timed = all(f"step {version}" in spans for version in range(steps))
    if not steps or not are_whole or not are_timed:
        raise DataError(
            f"{run}: {len(places)} trained groups are not whole steps of {recipe.rollout.problems_per_step} that "
            "trace.json has; a file of the run is missing or damaged"
        )
    return steps


def _spans(run: Path) -> dict[str, Span]:
    """Read the spans of trace.json, by name."""
    try:
        events = json.loads((run / "trace.json").read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{run}/trace.json: cannot be read ({error}); replay a run directory as written") from error
    spans = {}
    for event in events:
        if event["ph"] == "X":
            begin = event["ts"]
            end = begin + event["dur"]
            spans[event["name"]] = (begin / 1e6, end / 1e6)
    return spans


def _before(run: Path) -> Accuracy | None:
    """Read the evaluation before training; None: there was none."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    accuracy = first.get("eval/held_out/accuracy")
    if accuracy is None:
        return None
    return Accuracy(
        mean_reward=accuracy,
        problems=int(first["eval/held_out/problems"]),
        version=int(first["step"]),
    )
