"""Hold what the controller knows: of each open group, and at one instant, from which a run goes on."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from arl.clock import now
from arl.rollout.env import UNGRADED, Session
from arl.rollout.failure_window import WindowState
from arl.rollout.problem_queue import Attempt
from arl.types import Count, Problem, Trajectory, TrajectoryGroup, Turn


class RunningGroup(Struct, frozen=True):
    """Hold a group in flight, with what the engine had said in each of its episodes."""

    group_id: Count
    attempt: Attempt
    dispatch_version: Count
    dispatch_time: float  # clock seconds
    deadline: Count  # the last version that may train it
    journals: tuple[tuple[Turn, ...], ...] = ()  # (G,); none before its first token
    ended_tokens: Count = 0  # sampled by those of its episodes that have ended


class ControllerState(Struct, frozen=True, kw_only=True):
    """Hold everything that a controller restores; see Controller.state."""

    version: Count  # steps finished by the trainer
    loaded_version: Count  # what the engines resume with
    admitted: Count = 0  # groups so far: the group_id of the next one
    trained: Count = 0
    tokens_trained: Count = 0  # loss tokens
    lost: dict[str, Count] = {}  # fate -> groups
    restarted_tokens: Count = 0  # see Ledger
    position: Count = 0  # in the order of problems
    num_problems: Count = 0  # admitted so far
    requeued: tuple[Attempt, ...] = ()  # put back in line
    set_aside: tuple[Attempt, ...] = ()  # for a long round, with rollout.tail_batching
    is_long_round: bool = False
    failures: WindowState = WindowState()
    running: tuple[RunningGroup, ...] = ()  # in the order of their admission
    buffered: tuple[tuple[Count, TrajectoryGroup], ...] = ()  # (deadline, group), in the buffer's order

    @property
    def outstanding(self) -> list[tuple[int, int]]:
        """Return dispatch version and deadline of each group that was admitted and is neither trained nor lost."""
        finished = [(group.dispatch_version, due) for due, group in self.buffered]
        unfinished = [(group.dispatch_version, group.deadline) for group in self.running]
        return finished + unfinished


@dataclass(eq=False)
class OpenGroup:
    """Hold a group whose episodes run.

    Args:
        record: what was known of it at its admission, or what a checkpoint says of it.
    """

    record: RunningGroup
    sessions: Sequence[Session] = ()
    task: asyncio.Task[None] | None = None

    @property
    def problem(self) -> Problem:
        return self.record.attempt.problem

    @property
    def ended_tokens(self) -> int:
        """Return how many tokens its ended episodes have sampled."""
        if not self.sessions:
            return self.record.ended_tokens
        return sum(session.num_sampled for session in self.sessions if session.has_ended)

    def state(self) -> RunningGroup:
        """Return what a checkpoint keeps of this group."""
        if not self.sessions:  # its episodes have not been opened again yet
            return self.record
        journals = tuple(session.journal() for session in self.sessions)
        return msgspec.structs.replace(self.record, journals=journals, ended_tokens=self.ended_tokens)

    def partial(self) -> tuple[Trajectory, ...]:
        """Return what its episodes have so far, unscored: the reward is NaN."""
        return tuple(session.trajectory(UNGRADED) for session in self.sessions)

    def ended(self, trajectories: tuple[Trajectory, ...], version: int) -> TrajectoryGroup:
        """Make the record of this group, which ends now, at the trainer's `version`."""
        return TrajectoryGroup(
            group_id=self.record.group_id,
            problem=self.problem,
            trajectories=trajectories,
            dispatch_version=self.record.dispatch_version,
            dispatch_time=self.record.dispatch_time,
            arrival_version=version,
            arrival_time=now(),
        )

    def cancel(self) -> None:
        """Cancel its episodes."""
        assert self.task is not None
        self.task.cancel()
