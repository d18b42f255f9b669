"""Check that the state of a checkpoint is one that a run can have, before anything goes on from it.

    run.msgpack ─► recipe: what is read of it      ─► counts: they agree with each other and with the version
                ─► buffered groups, as rows        ─► the rules of a recording (arl.run.replay.verify_rows)
                ─► running groups, by what is said ─► likewise, as far as they apply to what has not ended

The manifest's sums say that the bytes are those that were written. Whoever may write to the directory can write others
with the right sums, and these must end in a message too. What one field may hold by itself is said by its type.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
import numpy as np
from msgspec import Meta, Struct

from arl.clock import LONGEST_TIME
from arl.config.leaves import leaves
from arl.data.model_limits import Limits, model_limits
from arl.errors import DataError
from arl.metrics.episode_table import episode_table, group_rows
from arl.metrics.trajectory_reading import check_rows
from arl.rollout.controller_state import RunningGroup
from arl.run.checkpoint_state import STATE, RunState
from arl.run.replay.verify_rows import GroupRules, RunBounds
from arl.types import MOST_COUNT, NOT_SAMPLED, TRAINED, Increment, Trajectory, TrajectoryGroup

ARRAYS = {"token_ids": np.int32, "behavior_logprobs": np.float32, "policy_versions": np.int32, "loss_mask": np.bool_}
Positive = Annotated[int, Meta(ge=1, le=MOST_COUNT)]


class _Rollout(Struct, frozen=True):
    """Read the recipe's section as far as it bounds groups."""

    problems_per_step: Positive
    group_size: Positive
    staleness: Annotated[int, Meta(ge=0)] | None
    tail_batching: dict[str, Any] | None


class _Train(Struct, frozen=True):
    """Read how long the run was to be."""

    steps: Positive
    tokens: Positive | None


class _Reward(Struct, frozen=True):
    """Read whether truncated episodes are without a loss."""

    mask_truncated: bool


class _Recorded(Struct, frozen=True):
    """Read a recorded recipe as far as a resume uses it before it is compared with the run's own recipe."""

    rollout: _Rollout
    train: _Train
    reward: _Reward


def verify_state(checkpoint: Path, state: RunState) -> None:
    """Check the state of a checkpoint whose config.json is as it was written.

    Raises:
        DataError: names the checkpoint, the field, its value and the rule.
    """
    _StateRules(checkpoint, state).check()


class _StateRules:
    """Check one state."""

    def __init__(self, checkpoint: Path, state: RunState) -> None:
        self._checkpoint = checkpoint
        self._file = checkpoint / STATE
        self._state = state
        self._controller = state.controller
        try:
            self._recipe = msgspec.convert(state.recipe, _Recorded)
        except msgspec.ValidationError as error:
            raise DataError(f"{self._file}: recipe is none that a run records ({error})") from error

    def check(self) -> None:
        """Apply every rule."""
        self._check_clock()
        self._check_counts()
        self._check_deadlines()
        limits = model_limits(str(self._checkpoint))
        self._check_buffered(limits)
        for group in self._controller.running:
            self._check_running(group, limits)

    def _check_clock(self) -> None:
        recorder = self._state.recorder
        times = {
            "time": self._state.time,
            "recorder.start": recorder.start,
            "recorder.rates.last_step": recorder.rates.last_step,
        }
        times |= {f"controller.running[{i}].dispatch_time": g.dispatch_time for i, g in enumerate(self._running)}
        for field, seconds in times.items():
            if not 0 <= seconds <= LONGEST_TIME:
                self._refuse(field, seconds, f"it must be from 0 to {LONGEST_TIME:.0f} seconds")
        counted = {"before": msgspec.to_builtins(self._state.before), "recorder": msgspec.to_builtins(recorder)}
        for field, value in leaves(counted):
            if isinstance(value, float) and not math.isfinite(value):
                self._refuse(field, value, "it must be finite")
            if type(value) is int and not 0 <= value <= MOST_COUNT:
                self._refuse(field, value, f"it must be a count from 0 to {MOST_COUNT}")

    @property
    def _running(self) -> tuple[RunningGroup, ...]:
        return self._controller.running

    def _check_counts(self) -> None:
        controller = self._controller
        size = self._recipe.rollout.problems_per_step
        expected = controller.version * size
        if controller.trained != expected:
            rule = (
                f"version {controller.version} has trained {expected} groups, rollout.problems_per_step {size} a step"
            )
            self._refuse("controller.trained", controller.trained, rule)
        if controller.loaded_version > controller.version:
            rule = f"engines serve no version before the trainer has it, which is at {controller.version}"
            self._refuse("controller.loaded_version", controller.loaded_version, rule)
        in_flight = len(controller.running) + len(controller.buffered)
        ended = controller.trained + sum(controller.lost.values())
        if controller.admitted != ended + in_flight:
            rule = f"{ended} groups have ended and {in_flight} are in flight, which are all that were admitted"
            self._refuse("controller.admitted", controller.admitted, rule)
        if controller.position != controller.num_problems:
            rule = f"so many problems were taken from their order as were admitted, {controller.num_problems}"
            self._refuse("controller.position", controller.position, rule)

    def _check_deadlines(self) -> None:
        """Check that steps can train all groups in flight in time: see arl.rollout.staleness."""
        controller = self._controller
        rollout = self._recipe.rollout
        by_deadline = Counter(deadline for _, deadline in controller.outstanding)
        before = [deadline for deadline in by_deadline if deadline < controller.version]
        if before:
            rule = f"version {controller.version} is trained, so no group in flight is due before it"
            self._refuse("deadline", min(before), rule)
        if rollout.staleness is not None:
            for dispatch_version, deadline in controller.outstanding:
                if deadline != dispatch_version + rollout.staleness:
                    rule = f"a group of version {dispatch_version} is due rollout.staleness {rollout.staleness} later"
                    self._refuse("deadline", deadline, rule)
        if rollout.tail_batching is not None:
            return  # a round begins more groups than its step trains
        due = itertools.accumulate(by_deadline[deadline] for deadline in sorted(by_deadline))
        for deadline, number in zip(sorted(by_deadline), due, strict=True):
            most = (deadline + 1 - controller.version) * rollout.problems_per_step
            if number > most:
                rule = f"{number} groups are due by then, and the steps from version {controller.version} train {most}"
                self._refuse("deadline", deadline, rule)

    # ---- groups

    def _bounds(self, limits: Limits) -> RunBounds:
        rollout = self._recipe.rollout
        return RunBounds(
            admitted=self._controller.admitted,
            trained=self._controller.trained,
            problems_per_step=rollout.problems_per_step,
            group_size=rollout.group_size,
            max_age=rollout.staleness,
            masks_truncated=self._recipe.reward.mask_truncated,
            limits=limits,
            counted_in=STATE,
        )

    def _check_buffered(self, limits: Limits) -> None:
        """Check the finished groups as if the next step would train them: they have their rewards."""
        groups = [group for _, group in self._controller.buffered]
        size = self._recipe.rollout.group_size
        for place, group in enumerate(groups):
            field = f"controller.buffered[{place}].trajectories"
            if len(group.trajectories) != size:
                self._refuse(f"length of {field}", len(group.trajectories), f"rollout.group_size is {size}")
            for sample, trajectory in enumerate(group.trajectories):
                self._check_arrays(f"{field}[{sample}]", trajectory)
        ids = [*(group.group_id for group in groups), *(group.group_id for group in self._running)]
        for group_id, times in Counter(ids).items():
            if times > 1 or group_id >= self._controller.admitted:
                rule = f"groups in flight have different numbers below {self._controller.admitted}"
                self._refuse("group_id", group_id, rule)
        if groups:
            self._check_rows(groups, TRAINED, self._controller.version, limits)

    def _check_arrays(self, field: str, trajectory: Trajectory) -> None:
        """Check the types of the arrays, of which a table could not be made otherwise."""
        for name, dtype in ARRAYS.items():
            array = getattr(trajectory, name)
            if array.dtype != dtype or array.ndim != 1:
                found = f"{array.dtype} of {array.ndim} dimensions"
                self._refuse(f"{field}.{name}", found, f"it must be {np.dtype(dtype)} of 1 dimension")
        if np.isnan(trajectory.behavior_logprobs).any():  # which a table would show as null
            self._refuse(f"{field}.behavior_logprobs", math.nan, "a logprob is finite and at most 0")

    def _check_running(self, running: RunningGroup, limits: Limits) -> None:
        """Check what the engines have said in the episodes of a group that goes on."""
        size = self._recipe.rollout.group_size
        version = self._controller.version
        field = f"controller.running: group {running.group_id}"
        if running.dispatch_version > version:
            rule = f"the trainer is at version {version}"
            self._refuse(f"{field}: dispatch_version", running.dispatch_version, rule)
        if len(running.journals) not in (0, size):
            self._refuse(f"{field}: number of journals", len(running.journals), f"rollout.group_size is {size}")
        said = [trajectory for trajectory in self._said(field, running) if len(trajectory.token_ids)]
        if not said:
            return
        group = TrajectoryGroup(
            group_id=running.group_id,
            problem=running.attempt.problem,
            trajectories=tuple(said),
            dispatch_version=running.dispatch_version,
            dispatch_time=running.dispatch_time,
            arrival_version=version,
            arrival_time=max(running.dispatch_time, self._state.time),
        )
        self._check_rows([group], "running", None, limits)

    def _said(self, field: str, running: RunningGroup) -> Iterator[Trajectory]:
        """Yield the sampled tokens of each episode, all of its turns joined, as a row without a prompt."""
        for turns in running.journals:
            said = [turn.said for turn in turns]
            for part in said:
                lengths = (len(part.token_ids), len(part.logprobs), len(part.policy_versions))
                if len(set(lengths)) > 1:
                    self._refuse(f"{field}: numbers of ids, logprobs, versions", lengths, "a token has one of each")
            yield _joined(said)

    def _check_rows(self, groups: list[TrajectoryGroup], fate: str, trained_at: int | None, limits: Limits) -> None:
        rows = [row for group in groups for row in group_rows(group, fate, trained_at)]
        table = episode_table(rows, codec=None)
        check_rows(self._file, table)
        rules = GroupRules([self._file], [len(rows)], table, self._bounds(limits))
        if fate == TRAINED:
            rules.check()
        else:
            rules.check_each()

    def _refuse(self, field: str, value: object, rule: str) -> NoReturn:
        raise DataError(f"{self._file}: {field} = {value!r}: {rule}")


def _joined(said: Sequence[Increment]) -> Trajectory:
    """Make one row of what an engine has said; a number that is no int32 becomes one that the rules refuse as well."""
    logprobs = [logprob for part in said for logprob in part.logprobs]
    versions = _int32(version for part in said for version in part.policy_versions)
    with np.errstate(over="ignore"):  # what is too large for a float32 becomes infinite, and is refused
        behavior_logprobs = np.array(logprobs, np.float32)
    return Trajectory(
        token_ids=_int32(token for part in said for token in part.token_ids),
        behavior_logprobs=behavior_logprobs,
        policy_versions=versions,
        loss_mask=versions != NOT_SAMPLED,
        prompt_length=0,
        reward=math.nan,
        unshaped_reward=math.nan,
        truncated=True,
    )


def _int32(numbers: Iterable[int]) -> np.ndarray:
    limits = np.iinfo(np.int32)
    return np.array([min(max(number, limits.min), limits.max) for number in numbers], np.int32)
