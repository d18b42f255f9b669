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
from arl.data.problems import load_problems
from arl.errors import DataError, InputError
from arl.types import FAILED, Accuracy, Problem, Trajectory, TrajectoryGroup

_TOKENS = {"token_ids": np.int32, "behavior_logprobs": np.float32, "policy_versions": np.int32, "loss_mask": np.bool_}
_NO_PROBLEM = Problem("")  # of a group that was lost before its first token, because that leaves no trajectory


class RecordedGroup(Struct, frozen=True):
    """A group of the recorded run, and what became of it."""

    group: TrajectoryGroup  # as it ended
    fate: str  # "trained", or how it was lost
    place: int | None  # in the order of training, v·P + its place in batch v; None: lost

    @property
    def is_scored(self) -> bool:
        """True if the group finished: every episode has its reward."""
        trajectories = self.group.trajectories
        return bool(trajectories) and not any(math.isnan(t.reward) for t in trajectories)

    @property
    def versions(self) -> tuple[int, int]:
        """The oldest and the newest version that sampled a token of it."""
        sampled = np.concatenate([t.policy_versions[t.loss_mask] for t in self.group.trajectories])
        return int(sampled.min()), int(sampled.max())


class Recording(Struct, frozen=True):
    """Everything that a replay needs of a run. All times are seconds of the recorded run's clock."""

    groups: tuple[RecordedGroup, ...]  # by group_id: in the order of admission
    start: float  # of training: the first admission
    step_seconds: tuple[float, ...]  # (steps,)
    loaded: dict[int, float]  # version -> when every engine had loaded it
    publish_seconds: float  # median, from the end of a step until engines begin to load what it made
    load_seconds: float  # median
    before: Accuracy | None  # the evaluation before training

    @property
    def seconds(self) -> float:
        """Time from the first admission to the last arrival or swap."""
        arrivals = [recorded.group.arrival_time for recorded in self.groups]
        return max([*arrivals, *self.loaded.values()]) - self.start


def read_recording(run: Path, recipe: Recipe) -> Recording:
    """Read the finished run in directory `run`, of which `recipe` is the recipe.

    Raises:
        InputError: it recorded no trajectories.
        DataError: a file is missing or damaged, or the problems are no longer what they were.
    """
    if not recipe.output.trajectories:
        raise InputError(f"{run}: recorded with output.trajectories=false; a replay needs a run with true")
    groups = _groups(run, recipe)
    spans = _spans(run)
    steps = [spans[f"step {v}"] for v in range(_num_steps(groups, run, recipe, spans))]
    swaps = {int(name.split()[-1]): span for name, span in spans.items() if name.startswith("swap to ")}
    loaded = {u: end for u, (_, end) in swaps.items()}
    for recorded in groups:  # the engines of a resumed run begin with its checkpoint, which is no swap
        if recorded.group.trajectories:
            loaded.setdefault(recorded.group.dispatch_version, recorded.group.dispatch_time)
    gaps = [max(begin - steps[u - 1][1], 0.0) for u, (begin, _) in swaps.items() if u <= len(steps)]
    return Recording(
        groups=tuple(groups),
        start=min(g.group.dispatch_time for g in groups if g.group.trajectories),
        step_seconds=tuple(end - begin for begin, end in steps),
        loaded=loaded,
        publish_seconds=median(gaps or [0.0]),
        load_seconds=median([end - begin for begin, end in swaps.values()] or [0.0]),
        before=_before(run),
    )


def _groups(run: Path, recipe: Recipe) -> list[RecordedGroup]:
    problems = {problem.id: problem for problem in load_problems(recipe.data, recipe.seed)[0]}
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
    table = pq.read_table(path)
    if "fate" not in table.column_names:
        raise DataError(f"{path}: no column `fate`; an older arl wrote it: record the run again")
    tokens = {name: _arrays(table.column(name).combine_chunks(), dtype) for name, dtype in _TOKENS.items()}
    for i, row in enumerate(table.drop_columns(list(_TOKENS)).to_pylist()):
        yield row | {name: arrays[i] for name, arrays in tokens.items()}


def _arrays(column: Any, dtype: type) -> list[np.ndarray]:
    ends = np.cumsum(column.value_lengths().to_numpy(zero_copy_only=False))
    return np.split(column.flatten().to_numpy(zero_copy_only=False).astype(dtype), ends[:-1])


def _group(
    rows: list[dict[str, Any]], problems: dict[str, Problem], taken: Counter[int], run: Path, recipe: Recipe
) -> RecordedGroup:
    """Make a group of its rows. Called in the order of training; `taken` counts the groups of each step so far."""
    first = rows[0]
    problem = problems.get(first["problem_id"])
    if problem is None:
        raise DataError(
            f"{run}: problem {first['problem_id']} of group {first['group_id']} is not in "
            f"{recipe.data.path or recipe.data.task}; replay with the problems it was recorded with"
        )
    place = None
    if (version := first["trained_at"]) is not None:
        place = version * recipe.rollout.problems_per_step + taken[version]
        taken[version] += 1
    names = ("dispatch_version", "dispatch_time", "arrival_version", "arrival_time")
    group = TrajectoryGroup(
        group_id=first["group_id"],
        problem=problem,
        trajectories=tuple(map(_trajectory, rows)),
        **{name: first[name] for name in names},
    )
    return RecordedGroup(group, first["fate"], place)


def _trajectory(row: dict[str, Any]) -> Trajectory:
    reward = math.nan if row["reward"] is None else row["reward"]
    tokens = {name: row[name] for name in _TOKENS}
    return Trajectory(prompt_length=row["prompt_length"], reward=reward, truncated=row["truncated"], **tokens)


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


def _num_steps(groups: list[RecordedGroup], run: Path, recipe: Recipe, spans: dict[str, tuple[float, float]]) -> int:
    places = sorted(g.place for g in groups if g.place is not None)
    steps, left_over = divmod(len(places), recipe.rollout.problems_per_step)
    timed = all(f"step {v}" in spans for v in range(steps))
    if not steps or left_over or places != list(range(len(places))) or not timed:
        raise DataError(
            f"{run}: {len(places)} trained groups are not whole steps of {recipe.rollout.problems_per_step} that "
            "trace.json has; a file of the run is missing or damaged"
        )
    return steps


def _spans(run: Path) -> dict[str, tuple[float, float]]:
    """Read the spans of trace.json: name -> (begin, end), clock seconds."""
    try:
        events = json.loads((run / "trace.json").read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{run}/trace.json: cannot be read ({error}); replay a run directory as written") from error
    return {e["name"]: (e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6) for e in events if e["ph"] == "X"}


def _before(run: Path) -> Accuracy | None:
    """Read the evaluation before training; None: there was none."""
    first = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    accuracy = first.get("eval/held_out/accuracy")
    return None if accuracy is None else Accuracy(accuracy, int(first["eval/held_out/problems"]), int(first["step"]))
