"""The asyncio controller: generation never waits for training, and no token is trained too old.

    problems ─► _admit ─► _run_group × many ─► buffer ─► _train ─► _publish ─► engines
                  ▲                                                               │
                  └────────────── loaded_version rises, the gate opens ───────────┘

Written once against three seams, the clock (the running loop), the engine and the trainer, and the same in every
world and mode. A slot is charged when a group is admitted and freed when the weights it waited for are loaded.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from arl.clock import deadline, now
from arl.data.problems import ProblemOrder
from arl.engine.base import Engine
from arl.errors import RewardError, RunError, leaves
from arl.recipe import Deadlines, Rollout
from arl.rollout.buffer import GroupBuffer
from arl.rollout.staleness import StalenessGate
from arl.train.base import Trainer
from arl.types import Batch, Problem, StepResult, SwapReport, Trajectory, TrajectoryGroup

RunGroup = Callable[[str, Problem], Awaitable[tuple[Trajectory, ...]]]


class Lease(Protocol):
    """Who holds the device. Disaggregated: nobody needs to. Collocated: engines sleep from a step until its swap."""

    async def acquire(self) -> None: ...

    async def release(self) -> None: ...


class Observer(Protocol):
    """What is told about the run, as it happens; it must not block."""

    def group_finished(self, group: TrajectoryGroup) -> None: ...

    def group_lost(self, problem: Problem, fate: str, cause: BaseException | None) -> None: ...

    def swapped(self, report: SwapReport) -> None: ...

    def step_finished(self, batch: Batch, result: StepResult, waited: float) -> None: ...


@dataclass(eq=False)
class _Running:
    """A group in flight."""

    group_id: int
    problem: Problem
    dispatch_version: int
    deadline: int
    task: asyncio.Task[None] | None = None


@dataclass
class Audit:
    """Every admitted group ends in exactly one of these, or is still in flight."""

    admitted: int = 0
    trained: int = 0
    lost: Counter[str] = field(default_factory=Counter)  # fate -> groups


class Checkpoints(NamedTuple):
    """Where models are saved, and how often; the last version always is."""

    directory: Path
    every: int  # steps; 0: only the last

    def due(self, version: int, steps: int) -> bool:
        return version == steps or (self.every > 0 and version % self.every == 0)


class Controller:
    def __init__(
        self,
        rollout: Rollout,
        deadlines: Deadlines,
        steps: int,
        engine: Engine,
        trainer: Trainer,
        problems: ProblemOrder,
        run_group: RunGroup,
        lease: Lease,
        observer: Observer,
        checkpoints: Checkpoints,
    ) -> None:
        self._rollout, self._deadlines, self._steps = rollout, deadlines, steps
        self._engine, self._trainer, self._lease, self._observer = engine, trainer, lease, observer
        self._problems, self._run, self._checkpoints = problems, run_group, checkpoints
        self._gate = StalenessGate(rollout.problems_per_step, rollout.staleness)
        self._buffer = GroupBuffer()
        self._running: dict[int, _Running] = {}
        self._requeues: Counter[str] = Counter()  # problem id -> times put back
        self._failures_in_a_row = 0
        self._room, self._finished, self._new_version = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.version = 0  # steps finished by the trainer
        self.audit = Audit()

    async def run(self) -> None:
        """Train `steps` versions; return when the last one is loaded by the engines.

        Raises:
            RunError: an engine or the trainer failed, a deadline passed, or too many groups failed in a row.
        """
        async with asyncio.TaskGroup() as tasks:
            admission = tasks.create_task(self._admit(tasks), name="admission")
            publisher = tasks.create_task(self._publish(), name="publisher")
            await self._train()
            admission.cancel()
            for group in self._running.values():
                assert group.task is not None
                group.task.cancel()
            await publisher

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
        ahead = self._gate.num_trained + self._gate.num_outstanding
        wanted = self._steps * self._rollout.problems_per_step  # nothing is generated that no step will train
        cap = self._rollout.max_groups or wanted
        return ahead < wanted and self._gate.num_outstanding < cap and self._gate.is_open(self._engine.loaded_version)

    def _start(self, problem: Problem, tasks: asyncio.TaskGroup) -> None:
        loaded = self._engine.loaded_version
        group = _Running(self.audit.admitted, problem, loaded, self._gate.admit(loaded))
        self.audit.admitted += 1
        self._running[group.group_id] = group
        group.task = tasks.create_task(self._run_group(group), name=f"group {group.group_id}")

    async def _run_group(self, group: _Running) -> None:
        """Consumes one problem; ends in the buffer, or lost with a stated fate."""
        try:
            trajectories = await self._run(f"g{group.group_id}", group.problem)
        except Exception as error:
            causes = list(leaves(error))
            if group.group_id not in self._running:
                return  # dropped meanwhile, and accounted for
            if any(isinstance(c, RunError) and not isinstance(c, RewardError) for c in causes):
                raise  # the engine is gone, or a deadline has passed: the run ends
            self._fail(group, causes[0])  # the reward or the user's env raised: this group ends
        else:
            self._failures_in_a_row = 0
            self._finish(group, trajectories)

    def _finish(self, group: _Running, trajectories: tuple[Trajectory, ...]) -> None:
        del self._running[group.group_id]
        done = TrajectoryGroup(group.group_id, group.problem, trajectories, group.dispatch_version, now())
        self._buffer.add(done, group.deadline)
        self._observer.group_finished(done)
        self._finished.set()

    def _fail(self, group: _Running, cause: BaseException) -> None:
        self._lose(group, "failed", cause)
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= self._rollout.max_failures:
            raise RunError(
                f"{self._failures_in_a_row} groups in a row failed (rollout.max_failures); the last, problem "
                f"{group.problem.id}: {type(cause).__name__}: {cause}. Fix the reward or env, or raise the limit"
            ) from cause

    def _lose(self, group: _Running, fate: str, cause: BaseException | None) -> None:
        """The group's number is given back, its end counted and told."""
        del self._running[group.group_id]
        self._gate.release(group.deadline)
        self.audit.lost[fate] += 1
        self._observer.group_lost(group.problem, fate, cause)
        self._room.set()
        self._finished.set()

    # ---- consumption

    async def _train(self) -> None:
        """Consumes P groups a step; waits for a batch no step can regret; unblocked by finished and lost groups."""
        for version in range(self._steps):
            started = now()
            chosen = await self._next_batch(version)
            async with deadline(self._deadlines.swap, "controller", "the device lease"):
                await self._lease.acquire()
            waited = now() - started
            batch = Batch(version, self._buffer.take(chosen))
            for due in chosen.elements():
                self._gate.train(due)
            self.audit.trained += len(batch.groups)
            self._room.set()
            async with deadline(self._deadlines.step, "controller", f"training step {version}"):
                result = await self._trainer.step(batch)
            self.version = result.version
            self._new_version.set()
            self._observer.step_finished(batch, result, waited)
            if self._checkpoints.due(self.version, self._steps):
                async with deadline(self._deadlines.step, "controller", f"checkpoint of version {self.version}"):
                    await self._trainer.save(self._checkpoints.directory / f"step_{self.version}")

    async def _next_batch(self, version: int) -> Counter[int]:
        """Deadlines of the P groups that step `version` consumes (design §4)."""
        wanted = self._rollout.problems_per_step
        async with deadline(self._deadlines.step, "trainer", f"{wanted} groups for step {version}; {self._state()}"):
            while True:
                self._finished.clear()
                chosen = self._buffer.earliest(wanted)
                if chosen.total() == wanted:
                    blocking = self._gate.first_blocking(version, chosen)
                    if blocking is None:
                        return chosen
                    if self._rollout.late == "drop":
                        self._abandon_one(blocking)
                        continue
                await self._finished.wait()

    def _abandon_one(self, blocking: int) -> None:
        """Give up the oldest unfinished group due by `blocking`; its problem may be tried again."""
        group = next(g for g in self._running.values() if g.deadline <= blocking)
        assert group.task is not None
        group.task.cancel()
        again = self._requeues[group.problem.id] < self._rollout.max_requeues
        self._lose(group, "dropped late, re-queued" if again else "dropped late, given up", None)
        if again:
            self._requeues[group.problem.id] += 1
            self._problems.put_back(group.problem)

    # ---- publication

    async def _publish(self) -> None:
        """Consumes new versions, the newest only; waits for a step; unblocked by it. Ends with the last version."""
        patience = 3 * self._deadlines.step  # a checkpoint, a batch, a step
        while self._engine.loaded_version < self._steps:
            async with deadline(patience, "publisher", f"a version after {self.version}"):
                await self._new_version.wait()
            self._new_version.clear()
            async with deadline(self._deadlines.swap, "publisher", f"weights of version {self.version} in engines"):
                update = await self._trainer.weights(self.version)
                report = await self._engine.update_weights(update)
            self._observer.swapped(report)
            await self._lease.release()
            self._room.set()

    def _state(self) -> str:
        return (
            f"{len(self._running)} groups running, {len(self._buffer)} finished, "
            f"engines at version {self._engine.loaded_version}"
        )
