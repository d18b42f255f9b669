"""The asyncio controller: generation never waits for training, and no token is trained too old.

    problems ─► _admit ─► _run_group × many ─► buffer ─► _train ─► _publish ─► engines
                  ▲                                        │                      │
                  │                                        └─► checkpoint         │
                  └────────────── loaded_version rises, the gate opens ───────────┘

Written once against three seams, the clock (the running loop), the engine and the trainer, and the same in every
world and mode. A slot is charged when a group is admitted and freed when the weights it waited for are loaded.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from arl.clock import deadline, now
from arl.config.recipe import Deadlines, Rollout
from arl.data.problems import ProblemOrder
from arl.engine.base import Engine
from arl.errors import Lost, Rejected, RewardError, RunError, leaves
from arl.rollout.base import Admission, Checkpoints, Groups, Lease, Observer
from arl.rollout.buffer import GroupBuffer
from arl.rollout.controller_state import ControllerState, RunningGroup
from arl.rollout.env import Session
from arl.rollout.filters import Filter
from arl.train.base import Trainer
from arl.types import Batch, Problem, Trajectory, TrajectoryGroup, Turn


@dataclass(eq=False)
class _Running:
    """A group in flight."""

    group_id: int
    problem: Problem
    dispatch_version: int
    dispatch_time: float
    deadline: int
    journals: Sequence[tuple[Turn, ...]] = ()  # of the run that is resumed
    sessions: Sequence[Session] = ()
    task: asyncio.Task[None] | None = None

    def state(self) -> RunningGroup:
        journals = tuple(session.journal() for session in self.sessions) or tuple(self.journals)
        return RunningGroup(
            self.group_id, self.problem, self.dispatch_version, self.dispatch_time, self.deadline, journals
        )

    def partial(self) -> tuple[Trajectory, ...]:
        """What there is of its episodes, unscored."""
        return tuple(session.trajectory(math.nan) for session in self.sessions)

    def ended(self, trajectories: tuple[Trajectory, ...], version: int) -> TrajectoryGroup:
        return TrajectoryGroup(
            self.group_id, self.problem, trajectories, self.dispatch_version, self.dispatch_time, version, now()
        )


@dataclass
class Audit:
    """Every admitted group ends in exactly one of these, or is still in flight."""

    admitted: int = 0
    trained: int = 0
    lost: Counter[str] = field(default_factory=Counter)  # fate -> groups


@dataclass(frozen=True, kw_only=True)
class Segment:
    """All that one segment of a run is made of: from its start, or a checkpoint, until version `until`."""

    rollout: Rollout
    deadlines: Deadlines
    steps: int  # versions of the whole run; nothing is generated that no step will train
    until: int  # the version this segment ends with: the last step's, or one whose checkpoint begins the next segment
    engine: Engine
    trainer: Trainer
    admission: Admission
    problems: ProblemOrder
    groups: Groups
    keep: Filter  # which finished groups are trained
    lease: Lease
    observer: Observer
    checkpoints: Checkpoints
    restored: ControllerState | None = None  # the checkpoint to go on from


class Controller:
    """Runs one Segment: admits groups, trains batches, publishes weights."""

    def __init__(self, segment: Segment) -> None:
        self._rollout = segment.rollout
        self._deadlines = segment.deadlines
        self._steps = segment.steps
        self._until = segment.until
        self._engine = segment.engine
        self._trainer = segment.trainer
        self._admission = segment.admission
        self._problems = segment.problems
        self._groups = segment.groups
        self._keep = segment.keep
        self._lease = segment.lease
        self._observer = segment.observer
        self._checkpoints = segment.checkpoints
        self._buffer = GroupBuffer()
        self._running: dict[int, _Running] = {}
        self._requeues: Counter[str] = Counter()  # problem id -> times put back
        self._failures_in_a_row = self._rejects_in_a_row = 0
        self._room, self._finished, self._loadable = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.version = 0  # steps finished by the trainer
        self.audit = Audit()
        if segment.restored is not None:
            self._restore(segment.restored)

    async def run(self) -> None:
        """Train until version `until` and save it; the last one is saved when the engines have loaded it.

        Raises:
            RunError: an engine or the trainer failed, a deadline passed, or too many groups failed in a row.
        """
        if self.version == self._steps:
            return
        if self._engine.loaded_version < self.version:  # resumed before the swap that ends the trainer's turn
            await self._take_turn()
        async with asyncio.TaskGroup() as tasks:
            for group in self._running.values():
                self._begin(group, tasks)
            for _ in range(3 if self._running else 0):  # their tasks, their episodes' tasks, what envs hear at once
                await asyncio.sleep(0)
            admission = tasks.create_task(self._admit(tasks), name="admission")
            publisher = tasks.create_task(self._publish(), name="publisher")
            await self._train(tasks)
            admission.cancel()
            for group in self._running.values():
                assert group.task is not None
                group.task.cancel()
            if self.version < self._steps:
                publisher.cancel()
        if self.version == self._steps:
            await (await self._checkpoint())

    # ---- state

    def state(self) -> ControllerState:
        """This instant; valid between two steps."""
        return ControllerState(
            version=self.version,
            loaded_version=self._engine.loaded_version,
            admitted=self.audit.admitted,
            trained=self.audit.trained,
            lost=dict(self.audit.lost),
            requeues=dict(self._requeues),
            failures_in_a_row=self._failures_in_a_row,
            rejects_in_a_row=self._rejects_in_a_row,
            position=self._problems.position,
            put_back=self._problems.waiting,
            running=tuple(group.state() for group in self._running.values()),
            buffered=tuple(self._buffer),
        )

    def _restore(self, state: ControllerState) -> None:
        self.version = state.version
        self.audit = Audit(state.admitted, state.trained, Counter(state.lost))
        self._requeues = Counter(state.requeues)
        self._failures_in_a_row, self._rejects_in_a_row = state.failures_in_a_row, state.rejects_in_a_row
        self._problems.restore(state.position, state.put_back)
        for deadline_, group in state.buffered:
            self._buffer.add(group, deadline_)
        for g in state.running:
            running = _Running(g.group_id, g.problem, g.dispatch_version, g.dispatch_time, g.deadline, g.journals)
            self._running[g.group_id] = running
        outstanding = [(g.dispatch_version, d) for d, g in state.buffered]
        outstanding += [(g.dispatch_version, g.deadline) for g in state.running]
        self._admission.restore(state.trained, state.loaded_version, outstanding)

    # ---- admission

    async def _admit(self, tasks: asyncio.TaskGroup) -> None:
        """Consumes problems and room; waits for room; unblocked by a swap, a step or a lost group."""
        patience = 3 * self._deadlines.step + self._deadlines.swap  # a batch, a step, a checkpoint
        while True:
            self._room.clear()
            while self._may_start():
                self._start(next(self._problems), tasks)
            async with deadline(patience, "admission", f"room (version {self.version}, {self._state()})"):
                await self._room.wait()

    def _may_start(self) -> bool:
        gate, wanted = self._admission, self._steps * self._rollout.problems_per_step
        cap = self._rollout.max_groups or wanted
        ahead = gate.num_trained + gate.num_outstanding
        return ahead < wanted and gate.num_outstanding < cap and gate.is_open(self._engine.loaded_version)

    def _start(self, problem: Problem, tasks: asyncio.TaskGroup) -> None:
        loaded = self._engine.loaded_version
        group = _Running(self.audit.admitted, problem, loaded, now(), self._admission.admit(loaded))
        self.audit.admitted += 1
        self._running[group.group_id] = group
        self._begin(group, tasks)

    def _begin(self, group: _Running, tasks: asyncio.TaskGroup) -> None:
        group.task = tasks.create_task(self._run_group(group), name=f"group {group.group_id}")

    async def _run_group(self, group: _Running) -> None:
        """Consumes one problem; ends in the buffer, or lost with a stated fate."""
        try:
            group.sessions = self._groups.open(f"g{group.group_id}", group.problem, group.journals)
            trajectories = await self._groups.run(group.problem, group.sessions)
            kept = self._keep(group.problem, trajectories)
        except Exception as error:
            causes = list(leaves(error))
            if group.group_id not in self._running:
                return  # dropped meanwhile, and accounted for
            if any(isinstance(c, RunError) and not isinstance(c, RewardError) for c in causes):
                raise  # the engine is gone, or a deadline has passed: the run ends
            if isinstance(causes[0], Lost):
                self._lose(group, group.partial(), str(causes[0]), None)
            elif isinstance(causes[0], Rejected):
                self._reject(group, group.partial(), causes[0])
            else:
                self._fail(group, causes[0])  # the reward, the filter or the user's env raised: this group ends
        else:
            self._failures_in_a_row = 0
            if kept:
                self._finish(group, trajectories)
            else:
                self._reject(group, trajectories, None)

    def _finish(self, group: _Running, trajectories: tuple[Trajectory, ...]) -> None:
        del self._running[group.group_id]
        self._rejects_in_a_row = 0
        done = group.ended(trajectories, self.version)
        self._buffer.add(done, group.deadline)
        self._observer.group_finished(done)
        self._finished.set()
        self._loadable.set()

    def _fail(self, group: _Running, cause: BaseException) -> None:
        self._lose(group, group.partial(), "failed", cause)
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= self._rollout.max_failures:
            raise RunError(
                f"{self._failures_in_a_row} groups in a row failed (rollout.max_failures); the last, problem "
                f"{group.problem.id}: {type(cause).__name__}: {cause}. Fix the reward or env, or raise the limit"
            ) from cause

    def _reject(self, group: _Running, trajectories: tuple[Trajectory, ...], cause: BaseException | None) -> None:
        self._lose(group, trajectories, "rejected", cause)
        self._rejects_in_a_row += 1
        if self._rejects_in_a_row >= self._rollout.max_rejects:
            rewards = sorted({t.reward for t in trajectories})[:5]
            raise RunError(
                f"{self._rejects_in_a_row} groups in a row were rejected (rollout.max_rejects) by "
                f"{cause or self._rollout.filter}; the last, problem {group.problem.id}, had the rewards {rewards}. "
                "Choose easier or harder problems, another filter, or raise the limit"
            )

    def _lose(
        self, group: _Running, trajectories: tuple[Trajectory, ...], fate: str, cause: BaseException | None
    ) -> None:
        """The group's number is given back, its end counted and told."""
        del self._running[group.group_id]
        self._admission.release(group.deadline)
        self.audit.lost[fate] += 1
        self._observer.group_lost(group.ended(trajectories, self.version), fate, cause)
        self._room.set()
        self._finished.set()
        self._loadable.set()

    # ---- consumption

    async def _train(self, tasks: asyncio.TaskGroup) -> None:
        """Consumes P groups a step; waits for a batch no step can regret; unblocked by finished, lost groups, swaps."""
        for version in range(self.version, self._until):
            started = now()
            chosen = await self._next_batch(version)
            if chosen is None:
                return
            await self._take_turn()
            waited = now() - started
            batch = Batch(version, self._buffer.take(chosen))
            for due in chosen.elements():
                self._admission.train(due)
            self.audit.trained += len(batch.groups)
            self._room.set()
            async with deadline(self._deadlines.step, "controller", f"training step {version}"):
                result = await self._trainer.step(batch)
            self.version = result.version
            self._loadable.set()
            self._observer.step_finished(batch, result, waited)
            if self.version < self._steps and self._checkpoints.due(self.version):
                tasks.create_task(await self._checkpoint(), name=f"checkpoint of version {self.version}")

    async def _take_turn(self) -> None:
        async with deadline(self._deadlines.swap_and_restart, "controller", "the device lease"):
            await self._lease.acquire()

    async def _checkpoint(self) -> Coroutine[Any, Any, None]:
        """The trainer waits for the copy of its state; everything else goes on, and so does what this returns."""
        async with deadline(self._deadlines.step, "controller", f"a copy of version {self.version}"):
            await self._checkpoints.copy(self.version)
        return self._checkpoints.write(self.state())

    async def _next_batch(self, version: int) -> Counter[int] | None:
        """Deadlines of the P groups that step `version` consumes (design §4); None: a recording has no more groups."""
        wanted = self._rollout.problems_per_step
        patience, what = self._deadlines.step, f"{wanted} groups for step {version}; {self._state()}"
        async with deadline(patience, "trainer", what) as scope:  # as long as no group ends
            while True:
                self._finished.clear()
                if len(self._buffer) >= wanted:
                    chosen = self._buffer.earliest(wanted)
                    blocking = self._admission.first_blocking(version, chosen)
                    if blocking is None:
                        return chosen
                    if self._rollout.late == "drop":
                        self._abandon_one(blocking)
                        continue
                if not self._running and not self._may_start() and self._engine.loaded_version == version:
                    return None
                await self._finished.wait()
                scope.reschedule(now() + patience)

    def _abandon_one(self, blocking: int) -> None:
        """Give up the oldest unfinished group due by `blocking`; its problem may be tried again."""
        group = next(g for g in self._running.values() if g.deadline <= blocking)
        assert group.task is not None
        group.task.cancel()
        again = self._requeues[group.problem.id] < self._rollout.max_requeues
        self._lose(group, group.partial(), "dropped late, re-queued" if again else "dropped late, given up", None)
        if again:
            self._requeues[group.problem.id] += 1
            self._problems.put_back(group.problem)

    # ---- publication

    async def _publish(self) -> None:
        """Consumes new versions, the last one included; waits until one may be loaded; unblocked by steps, groups."""
        patience = 3 * self._deadlines.step  # a checkpoint, a batch, a step
        while (loaded := self._engine.loaded_version) < self._steps:
            what = f"a version after {loaded} to load; {self._state()}"
            async with deadline(patience, "publisher", what) as scope:  # as long as no group and no step ends
                while (version := self._admission.next_version(loaded, self.version, len(self._running))) is None:
                    self._loadable.clear()
                    await self._loadable.wait()
                    scope.reschedule(now() + patience)
            restart = self._deadlines.swap_and_restart
            async with deadline(restart, "publisher", f"weights of version {version} in engines"):
                update = await self._trainer.weights(version)
                report = await self._engine.update_weights(update)
            self._observer.swapped(report)
            await self._lease.release()
            self._room.set()
            self._finished.set()

    def _state(self) -> str:
        return (
            f"{len(self._running)} groups running, {len(self._buffer)} finished, "
            f"engines at version {self._engine.loaded_version}"
        )
