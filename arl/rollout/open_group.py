"""Hold what belongs to one group from its admission until it is finished or lost."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from arl.clock import now
from arl.rollout.controller_state import RunningGroup
from arl.rollout.env import UNGRADED, Session
from arl.rollout.problem_queue import Attempt
from arl.types import Problem, Trajectory, TrajectoryGroup, Turn


@dataclass(eq=False, kw_only=True)
class OpenGroup:
    """Hold a group whose episodes run."""

    group_id: int
    attempt: Attempt
    dispatch_version: int  # loaded_version at its admission
    dispatch_time: float  # clock seconds
    deadline: int  # the last version that may train it
    journals: Sequence[tuple[Turn, ...]] = ()  # of the run that is resumed
    recorded_tokens: int = 0  # of the episodes that had ended there; counts until they are opened again
    sessions: Sequence[Session] = ()
    task: asyncio.Task[None] | None = None

    @classmethod
    def restored(cls, state: RunningGroup, keeps_tokens: bool) -> "OpenGroup":
        """Make the group that a checkpoint describes; its episodes do not run yet.

        Args:
            keeps_tokens: go on from what its episodes had sampled; else they begin anew.
        """
        return cls(
            group_id=state.group_id,
            attempt=state.attempt,
            dispatch_version=state.dispatch_version,
            dispatch_time=state.dispatch_time,
            deadline=state.deadline,
            journals=state.journals if keeps_tokens else (),
            recorded_tokens=state.ended_tokens if keeps_tokens else 0,
        )

    @property
    def problem(self) -> Problem:
        return self.attempt.problem

    @property
    def ended_tokens(self) -> int:
        """Return how many tokens its ended episodes have sampled."""
        if not self.sessions:
            return self.recorded_tokens
        return sum(session.num_sampled for session in self.sessions if session.has_ended)

    def state(self) -> RunningGroup:
        """Return what a checkpoint keeps of this group."""
        journals = tuple(self.journals)  # its episodes may not have been opened again yet
        if self.sessions:
            journals = tuple(session.journal() for session in self.sessions)
        return RunningGroup(
            group_id=self.group_id,
            attempt=self.attempt,
            dispatch_version=self.dispatch_version,
            dispatch_time=self.dispatch_time,
            deadline=self.deadline,
            journals=journals,
            ended_tokens=self.ended_tokens,
        )

    def partial(self) -> tuple[Trajectory, ...]:
        """Return what its episodes have so far, unscored: the reward is NaN."""
        return tuple(session.trajectory(UNGRADED) for session in self.sessions)

    def ended(self, trajectories: tuple[Trajectory, ...], version: int) -> TrajectoryGroup:
        """Make the record of this group, which ends now, at the trainer's `version`."""
        return TrajectoryGroup(
            group_id=self.group_id,
            problem=self.problem,
            trajectories=trajectories,
            dispatch_version=self.dispatch_version,
            dispatch_time=self.dispatch_time,
            arrival_version=version,
            arrival_time=now(),
        )

    def cancel(self) -> None:
        """Cancel its episodes."""
        assert self.task is not None
        self.task.cancel()
