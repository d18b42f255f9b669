"""Hold what the controller knows: of each group, of the run, and at one instant, from which a run goes on."""

import asyncio
import bisect
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

import msgspec
from msgspec import Struct

from arl.clock import now
from arl.data.problem_order import OrderState
from arl.engine.base import Engine
from arl.rollout.env import UNGRADED, Session
from arl.rollout.failure_window import WindowState
from arl.rollout.problem_queue import Attempt
from arl.types import Batch, Count, Problem, Trajectory, TrajectoryGroup, Turn


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
    order: dict[str, OrderState] = {}  # of problems, by source
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
        return tuple(branch for session in self.sessions for branch in session.trajectories(UNGRADED))

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


class GroupBuffer:
    """Keep (deadline, group), earliest deadline first, in order of arrival within one."""

    def __init__(self) -> None:
        self._groups: list[tuple[int, TrajectoryGroup]] = []

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[tuple[int, TrajectoryGroup]]:
        return iter(self._groups)

    def add(self, group: TrajectoryGroup, deadline: int) -> None:
        """Add a group that the step of version `deadline` must train at the latest."""
        bisect.insort_right(self._groups, (deadline, group), key=itemgetter(0))

    def earliest(self, count: int) -> Counter[int]:
        """Choose the first `count` groups in the order of deadlines, and return how many there are of each deadline."""
        return Counter(deadline for deadline, _ in self._groups[:count])

    def take(self, chosen: Counter[int]) -> tuple[TrajectoryGroup, ...]:
        """Remove and return the groups that `earliest` chose: within a deadline the first to arrive, ordered by id.

        They are not ordered by arrival, because their order decides their minibatch, and no minibatch may consist of
        the quick ones.
        """
        left = chosen.copy()
        taken: list[tuple[int, TrajectoryGroup]] = []
        kept: list[tuple[int, TrajectoryGroup]] = []
        for deadline, group in self._groups:  # others may have arrived since
            if left[deadline] > 0:
                left[deadline] -= 1
                taken.append((deadline, group))
            else:
                kept.append((deadline, group))
        self._groups = kept
        taken.sort(key=lambda item: (item[0], item[1].group_id))
        return tuple(group for _, group in taken)


class Progress:
    """Hold how far a run is, and the events by which its loops wake each other: see arl.rollout.controller.

    Args:
        steps: the last version, at most.
        tokens: loss tokens after which no further step starts; None: only `steps` counts.
    """

    def __init__(self, engine: Engine, steps: int, tokens: int | None) -> None:
        self._engine = engine
        self._tokens = tokens
        self.last_version = steps
        self.version = 0  # steps finished by the trainer
        self.tokens_trained = 0  # loss tokens
        self.running: dict[int, OpenGroup] = {}  # group_id -> group, in the order of admission
        self.buffer = GroupBuffer()
        self.capacity = asyncio.Event()
        self.finished = asyncio.Event()
        self.loadable = asyncio.Event()

    @property
    def has_ended(self) -> bool:
        """Return whether the last step of the run is trained."""
        return self.version == self.last_version

    def restore(self, version: int, tokens_trained: int) -> None:
        """Go on from a checkpoint, which may be the last one."""
        self.version = version
        self.tokens_trained = tokens_trained
        self._end_if_enough(version)

    def count(self, batch: Batch) -> None:
        """Count what a step is about to train. Its version is the last one if that is enough."""
        for group in batch.groups:
            self.tokens_trained += sum(int(trajectory.loss_mask.sum()) for trajectory in group.trajectories)
        self._end_if_enough(batch.version + 1)

    def _end_if_enough(self, version: int) -> None:
        if self._tokens is not None and self.tokens_trained >= self._tokens:
            self.last_version = version

    def describe(self) -> str:
        """Describe this moment, for the message of a wait."""
        groups = f"{len(self.running)} groups running, {len(self.buffer)} finished"
        return f"{groups}, engines at version {self._engine.loaded_version}"
