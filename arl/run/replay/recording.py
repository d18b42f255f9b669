"""Read back what a finished run left behind: every group with its fate, and when everything happened.

trajectories/*.parquet ─► groups, with the times of their arrival        trace.json ─► times of steps and swaps
"""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct, structs

from arl.config.recipe import Recipe
from arl.data.problems import load_problems
from arl.errors import DataError, InputError
from arl.metrics.spans import read_spans
from arl.metrics.trajectory_files import TOKENS, read_trajectories, trajectory_files
from arl.types import FAILED, NOT_SAMPLED, Problem, Trajectory, TrajectoryGroup

_OF_GROUP = ("group_id", "dispatch_version", "dispatch_time", "arrival_version", "arrival_time")
_SCALARS = ("prompt_length", "reward", "unshaped_reward", "truncated", "reward_error", "branch")
_OF_TRAJECTORY = (*TOKENS, *_SCALARS, "reward_parts", "measures")


class RecordedGroup(Struct, frozen=True):
    """Hold a group of the recorded run, and what became of it."""

    group: TrajectoryGroup  # as it ended
    fate: str  # "trained", or how it was lost
    place: int | None  # in the order of training, v·P + its place in batch v; None: lost

    @property
    def is_scored(self) -> bool:
        """Return whether the group finished: every episode has its reward."""
        trajectories = self.group.trajectories
        return bool(trajectories) and not any(math.isnan(trajectory.reward) for trajectory in trajectories)

    @property
    def versions(self) -> tuple[int, int]:
        """Return the oldest and the newest version that sampled a token of it, in the loss or not."""
        versions = np.concatenate([t.policy_versions for t in self.group.trajectories])
        sampled = versions[versions != NOT_SAMPLED]
        if not len(sampled):  # its env has returned without asking the policy
            return self.group.dispatch_version, self.group.dispatch_version
        return int(sampled.min()), int(sampled.max())


class Recording(Struct, frozen=True):
    """Hold everything that a replay needs of a run. All times are seconds of the recorded run's clock."""

    groups: tuple[RecordedGroup, ...]  # by group_id: in the order of admission
    start: float  # of training: the first admission
    step_seconds: tuple[float, ...]  # (steps,)
    loaded: dict[int, float]  # version -> when every engine had loaded it

    @property
    def timeout(self) -> float:
        """Return the seconds without a step after which there will be no other: twice those of the recorded run."""
        arrivals = [recorded.group.arrival_time for recorded in self.groups]
        return 2 * (max([*arrivals, *self.loaded.values()]) - self.start) + 1.0


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
    num_steps = sum(recorded.place is not None for recorded in groups) // recipe.rollout.problems_per_step
    spans = read_spans(run)
    steps = [spans.steps[version] for version in range(num_steps)]
    loaded = {version: end for version, (_, end) in spans.swaps.items()}
    for group in begun:  # the engines of a resumed run begin with its checkpoint, which is no swap
        loaded.setdefault(group.dispatch_version, group.dispatch_time)
    return Recording(
        groups=tuple(groups),
        start=min(group.dispatch_time for group in begun),
        step_seconds=tuple(end - begin for begin, end in steps),
        loaded=loaded,
    )


def _groups(run: Path, recipe: Recipe) -> list[RecordedGroup]:
    problems = {
        problem.id: problem
        for source in recipe.sources.values()
        for problem in load_problems(source.data, source.seed).training
    }
    columns = ("fate", "trained_at", "problem_id", "source", *_OF_GROUP, *_OF_TRAJECTORY)
    table = pa.concat_tables([read_trajectories(file, columns) for file in trajectory_files(run)]).combine_chunks()
    unknown = set(table["problem_id"].to_pylist()) - problems.keys()
    if unknown:
        raise DataError(
            f"{run}: problem_id {min(unknown)!r} is not in {recipe.where_problems_are}; replay with the problems it "
            "was recorded with"
        )
    rows: dict[int, list[dict[str, Any]]] = {}
    for i, row in enumerate(table.drop_columns(list(TOKENS)).to_pylist()):
        row |= {name: table[name][i].values.to_numpy(zero_copy_only=False) for name in TOKENS}
        rows.setdefault(row["group_id"], []).append(row)
    ever = -math.inf
    # A group that failed before its first token has no row.
    groups = [
        RecordedGroup(TrajectoryGroup(group_id, Problem(""), (), 0, ever, 0, ever), FAILED, None)
        for group_id in range(max(rows) + 1)
    ]
    taken: Counter[int] = Counter()  # groups of each step so far; rows are in the order of training
    for group_id, own in rows.items():
        first = own[0]
        version = first["trained_at"]
        place = None
        if version is not None:
            place = version * recipe.rollout.problems_per_step + taken[version]
            taken[version] += 1
        group = TrajectoryGroup(
            problem=structs.replace(problems[first["problem_id"]], source=first["source"]),
            trajectories=tuple(map(_trajectory, own)),
            **{name: first[name] for name in _OF_GROUP},
        )
        groups[group_id] = RecordedGroup(group, first["fate"], place)
    return groups


def _trajectory(row: dict[str, Any]) -> Trajectory:
    row |= {name: dict(row[name]) for name in ("reward_parts", "measures")}
    row |= {name: math.nan for name in ("reward", "unshaped_reward") if row[name] is None}
    return Trajectory(**{name: row[name] for name in _OF_TRAJECTORY})
