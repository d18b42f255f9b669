"""Run the asyncio controller: generation never waits for training, and no token is trained too old.

    problems ─► _admit ─► _run_group × many ─► buffer ─► _train ─► publish ─► engines
       ▲          ▲             │                          │                     │
       │ re-queue │             └─► lost: failed,          └─► checkpoint        │
       └──────────┼──────────────── rejected, dropped                            │
                  └─────────── loaded_version rises, and the gate opens ─────────┘

Three loops run at once, _admit, _train and publish, beside one task for each group. They wake each other by events:

    event      set by                                   waited for by
    capacity   a step, a swap, a lost group             _admit
    finished   a finished or lost group, a swap         _train
    loadable   a step, a finished or lost group,        publish
               the end of a round of admissions

The controller is the same in every world and mode, because it meets them only through the seams that a Segment holds,
and through the clock of the running event loop. Its rules are elsewhere: what may start and what must be trained when
in staleness.py and exact_lag.py, which failures end a run in failure_window.py. How weights are loaded is in swaps.py.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import msgspec

from arl.clock import now, outer_deadline
from arl.engine.meters import PartTimer
from arl.errors import Lost, Rejected, ends_the_run, leaves
from arl.metrics.batch import pass_rate
from arl.rollout.base import Checkpoints, Observer, Segment
from arl.rollout.controller_state import ControllerState, OpenGroup, Progress, RunningGroup
from arl.rollout.failure_window import FailureLimits
from arl.rollout.ledger import Ledger
from arl.rollout.problem_queue import Attempt, ProblemQueue, TailRounds
from arl.rollout.swaps import publish
from arl.types import FAILED, FAILED_REQUEUED, LATE, LATE_REQUEUED, REJECTED, SET_ASIDE, Batch, StepWaits, Trajectory

PASSES_UNTIL_RECALLED = 3  # of the event loop: a restored group's task, its episodes' tasks, and their recorded turns


class Controller:
    """Run one segment of a run: admit groups, train batches, publish weights.

    Args:
        until: the version that ends the segment: the last step's, or one whose checkpoint begins the next segment.
        restored: the checkpoint to go on from.
    """

    def __init__(
        self,
        segment: Segment,
        until: int,
        observer: Observer,
        checkpoints: Checkpoints,
        restored: ControllerState | None = None,
    ) -> None:
        self._segment = segment
        self._rollout = segment.rollout
        self._deadlines = segment.deadlines
        self._engine = segment.engine
        self._trainer = segment.trainer
        self._admission = segment.admission
        self._tail = segment.tail
        self._until = until
        self._observer = observer
        self._checkpoints = checkpoints
        self._problems = ProblemQueue(segment.problems, segment.rollout.max_requeues)
        self._limits = FailureLimits(segment.rollout)
        self._progress = Progress(segment.engine, segment.steps, segment.tokens)
        self._buffer = self._progress.buffer
        self._running = self._progress.running
        self._saved = 0  # the newest version with a checkpoint; version 0 needs none
        self.is_stopping = False
        self.ledger = Ledger()
        if restored is not None:
            self._restore(restored)

    async def run(self) -> None:
        """Train until version `until` and save it; the last one is saved when the engines have loaded it.

        After `stop` the newest version is saved instead, with the groups that are open.

        Raises:
            RunError: an engine or the trainer failed, a deadline passed, or too many groups failed or were rejected.
        """
        if self.has_ended():
            return
        if self._engine.loaded_version < self.version:  # resumed before the swap that ends the trainer's turn
            await self._take_turn()
        async with asyncio.TaskGroup() as tasks:
            await self._resume_groups(tasks)
            admission = tasks.create_task(self._admit(tasks), name="admission")
            publisher = tasks.create_task(publish(self._segment, self._progress, self._observer), name="publisher")
            await self._train(tasks)
            if self.is_stopping and not self.has_ended() and self.version > self._saved:
                await self._save_beside(tasks)
            admission.cancel()
            for group in self._running.values():
                group.cancel()
            if not self.has_ended():
                publisher.cancel()
        if self.has_ended():
            await self.save()

    def stop(self) -> None:
        """Begin no other step: `run` returns when the newest version is saved."""
        self.is_stopping = True
        self._progress.finished.set()

    def has_ended(self) -> bool:
        """Return whether the last step of the run is trained."""
        return self._progress.has_ended

    @property
    def version(self) -> int:
        """Return how many steps the trainer has finished."""
        return self._progress.version

    # ---- admission

    async def _admit(self, tasks: asyncio.TaskGroup) -> None:
        """Start groups as long as the admission rule is open.

        Consumes problems. Waits for capacity. Unblocked by a swap, a step or a lost group.
        """
        timeout = 3 * self._deadlines.step + self._deadlines.swap  # a batch, a step, a checkpoint
        while True:
            self._progress.capacity.clear()
            while self._may_start():
                waiting_long = self._tail.next() if self._tail is not None else None
                self._start(waiting_long or self._problems.next(), tasks)
            self._segment.gate_meter.hold(self._needs_more())
            self._progress.loadable.set()  # a load that was put off is due, if the gate has closed
            async with outer_deadline(timeout, "admission", lambda: f"room for a group; {self._progress.describe()}"):
                await self._progress.capacity.wait()

    def _may_start(self) -> bool:
        """Return whether one more group may start: a step needs it, the cap allows it, and the gate is open."""
        cap = self._rollout.max_groups
        is_below_cap = cap is None or self._admission.num_outstanding < cap
        return self._needs_more() and is_below_cap and self._admission.is_open(self._engine.loaded_version)

    def _needs_more(self) -> bool:
        """Return whether steps are left for which no group was admitted."""
        needed = self._progress.last_version * self._rollout.problems_per_step
        return self._admission.num_trained + self._admission.num_outstanding < needed

    def _start(self, attempt: Attempt, tasks: asyncio.TaskGroup) -> None:
        loaded = self._engine.loaded_version
        record = RunningGroup(
            group_id=self.ledger.admitted,
            attempt=attempt,
            dispatch_version=loaded,
            dispatch_time=now(),
            deadline=self._admission.admit(loaded),
        )
        self.ledger.admitted += 1
        self._begin(OpenGroup(record), tasks)

    def _begin(self, group: OpenGroup, tasks: asyncio.TaskGroup) -> None:
        self._running[group.record.group_id] = group
        group.task = tasks.create_task(self._run_group(group), name=f"group {group.record.group_id}")

    # ---- one group

    async def _run_group(self, group: OpenGroup) -> None:
        """Run the episodes of one group; it ends in the buffer, or is lost with a stated fate.

        Consumes one attempt. Waits for engines, env and rewards. Unblocked by them, or canceled when it is late.
        """
        try:
            groups = self._segment.groups
            group.sessions = groups.open(f"g{group.record.group_id}", group.problem, group.record.journals)
            trajectories = await groups.run(group.problem, group.sessions)
            self._problems.order.learned(group.problem, pass_rate(trajectories))
            kept = self._segment.keep(group.problem, trajectories)
        except Exception as error:
            if group.record.group_id in self._running:  # else it was abandoned meanwhile, and is accounted for
                self._end_early(group, error)
        else:
            if kept:
                self._finish(group, trajectories)
            else:
                self._reject(group, trajectories, cause=None)

    def _end_early(self, group: OpenGroup, error: Exception) -> None:
        """Decide what the exception of a group means: the end of the run, or the fate of the group."""
        causes = list(leaves(error))
        if any(ends_the_run(cause) for cause in causes):
            raise error
        cause = causes[0]
        if isinstance(cause, Lost):
            self._lose(group, group.partial(), fate=str(cause))
        elif isinstance(cause, Rejected):
            self._reject(group, group.partial(), cause)
        else:
            requeued = self._problems.requeue(group.record.attempt)
            self._lose(group, group.partial(), fate=FAILED_REQUEUED if requeued else FAILED, cause=cause)
            self._limits.count_failure(group.record.attempt, cause)

    def _finish(self, group: OpenGroup, trajectories: tuple[Trajectory, ...]) -> None:
        del self._running[group.record.group_id]
        done = group.ended(trajectories, self.version)
        self._buffer.add(done, group.record.deadline)
        self._observer.group_finished(done)
        if self._tail is not None and len(self._buffer) == self._rollout.problems_per_step:
            self._set_rest_aside(self._tail)
        self._progress.finished.set()
        self._progress.loadable.set()

    def _reject(self, group: OpenGroup, trajectories: tuple[Trajectory, ...], cause: BaseException | None) -> None:
        self._lose(group, trajectories, fate=REJECTED, cause=cause)
        rewards = [trajectory.reward for trajectory in trajectories]
        self._limits.count_reject(group.record.attempt, rewards, cause)

    def _lose(
        self, group: OpenGroup, trajectories: tuple[Trajectory, ...], *, fate: str, cause: BaseException | None = None
    ) -> None:
        """Give the group's number back, count its fate and report it."""
        del self._running[group.record.group_id]
        self._admission.release(group.record.deadline)
        self.ledger.lost[fate] += 1
        self._observer.group_lost(group.ended(trajectories, self.version), fate, cause)
        self._progress.capacity.set()
        self._progress.finished.set()
        self._progress.loadable.set()

    # ---- training

    async def _train(self, tasks: asyncio.TaskGroup) -> None:
        """Train one batch a step until version `until`, or until `stop`.

        Consumes P finished groups a step. Waits for a batch that breaks no later step's bound, for the device, and for
        the trainer. Unblocked by finished groups, lost groups, swaps and `stop`.
        """
        for version in range(self.version, self._until):
            timer = PartTimer()
            chosen = await self._wait_for_batch(version, timer)
            if chosen is None:
                return
            with timer.part("device"):
                await self._take_turn()
            if self.is_stopping:
                return
            batch = self._consume(version, chosen)
            async with outer_deadline(self._deadlines.step, "controller", f"training step {version}"):
                result = await self._trainer.step(batch)
            self._progress.version = result.version
            self._progress.loadable.set()
            self._observer.step_finished(batch, result, StepWaits(**timer.seconds))
            open_attempts = [group.record.attempt for group in self._running.values()]
            self._limits.forget_before(self._problems.oldest([*open_attempts, *self._set_aside()]))
            if self.has_ended():
                return
            if self._checkpoints.due(self.version):
                await self._save_beside(tasks)

    async def _wait_for_batch(self, version: int, timer: PartTimer) -> Counter[int] | None:
        """Wait until step `version` may start; the deadline counts from the last group that ended.

        Returns:
            How many groups of each deadline it consumes; None: a recording has no more groups, or `stop`.
        """
        timeout = self._deadlines.step
        what = f"{self._rollout.problems_per_step} groups for step {version}"
        async with outer_deadline(timeout, "trainer", lambda: f"{what}; {self._progress.describe()}") as scope:
            while True:
                self._progress.finished.clear()
                has_enough = len(self._buffer) >= self._rollout.problems_per_step
                chosen = self._choose_batch(version) if has_enough else None
                if chosen is not None or self._has_no_more_groups(version):
                    return chosen
                with timer.part("bound" if has_enough else "groups"):
                    await self._progress.finished.wait()
                scope.reschedule(now() + timeout)

    def _choose_batch(self, version: int) -> Counter[int] | None:
        """Choose the groups that are due first, if step `version` may consume them now; else None.

        With `rollout.late: drop`, unfinished groups that are in its way are abandoned, oldest first. A run without a
        bound waits for its engines, because published versions take memory.
        """
        newest = self._engine.loaded_version + self._rollout.versions_ahead
        if self._rollout.is_unbounded and version > newest:
            return None
        chosen = self._buffer.earliest(self._rollout.problems_per_step)
        blocking = self._admission.first_blocking(version, chosen)
        while blocking is not None and self._rollout.late == "drop":
            self._abandon_one(blocking)
            blocking = self._admission.first_blocking(version, chosen)
        return chosen if blocking is None else None

    def _abandon_one(self, blocking: int) -> None:
        """Give up the oldest unfinished group due by version `blocking`; its problem may be tried again."""
        group = next(group for group in self._running.values() if group.record.deadline <= blocking)
        group.cancel()
        requeued = self._problems.requeue(group.record.attempt)
        self._lose(group, group.partial(), fate=LATE_REQUEUED if requeued else LATE)

    def _set_rest_aside(self, tail: TailRounds) -> None:
        """End a round of tail batching: nothing of it runs on."""
        rest = list(self._running.values())
        tail.end([group.record.attempt for group in rest])
        for group in rest:
            group.cancel()
            self._lose(group, group.partial(), fate=SET_ASIDE)

    def _has_no_more_groups(self, version: int) -> bool:
        """Return whether nothing runs and nothing can start, although the engines have loaded `version`; or `stop`."""
        if self.is_stopping:
            return True
        is_idle = not self._running and not self._may_start()
        return is_idle and self._engine.loaded_version == version

    def _consume(self, version: int, chosen: Counter[int]) -> Batch:
        """Take the chosen groups out of the buffer; their places are free again, unless this step is the last."""
        batch = Batch(version, self._buffer.take(chosen))
        self._progress.count(batch)
        for due in chosen.elements():
            self._admission.train(due)
        self.ledger.trained += len(batch.groups)
        self._progress.capacity.set()
        return batch

    async def _take_turn(self) -> None:
        """Wait for the device, where engines and trainer share one; without interruptions also for open episodes."""
        if self._segment.lease is None:
            return
        timeout = self._deadlines.swap_and_restart + (0 if self._segment.drain is None else self._deadlines.step)
        async with outer_deadline(timeout, "controller", "the device lease"):
            await self._segment.lease.acquire()

    # ---- state

    async def save(self) -> None:
        """Save the run as it is now, and return when the checkpoint is complete."""
        write = await self._copy_for_checkpoint()
        await write

    async def _save_beside(self, tasks: asyncio.TaskGroup) -> None:
        """Save the run as it is when the trainer's state is copied; the checkpoint is written while the run goes on."""
        write = await self._copy_for_checkpoint()
        tasks.create_task(write, name=f"checkpoint of version {self.version}")

    async def _copy_for_checkpoint(self) -> Coroutine[Any, Any, None]:
        """Copy the trainer's state while the trainer waits, and return the coroutine that writes the checkpoint."""
        async with outer_deadline(self._deadlines.step, "controller", f"a copy of version {self.version}"):
            await self._checkpoints.copy(self.version)
        self._saved = self.version
        return self._checkpoints.write(self.state())

    def state(self) -> ControllerState:
        """Return what a checkpoint keeps of this instant; valid between two steps."""
        return ControllerState(
            version=self.version,
            loaded_version=self._engine.loaded_version,
            admitted=self.ledger.admitted,
            trained=self.ledger.trained,
            tokens_trained=self._progress.tokens_trained,
            lost=dict(self.ledger.lost),
            restarted_tokens=self.ledger.restarted_tokens,
            order=self._problems.order.states(),
            num_problems=self._problems.num_problems,
            requeued=tuple(self._problems.waiting),
            set_aside=self._set_aside(),
            is_long_round=self._tail is not None and self._tail.is_long,
            failures=self._limits.state(),
            running=tuple(group.state() for group in self._running.values()),
            buffered=tuple(self._buffer),
        )

    def _restore(self, state: ControllerState) -> None:
        """Go on from a checkpoint; the groups in flight begin to run in `run`."""
        self._progress.restore(state.version, state.tokens_trained)
        self._saved = state.version
        self.ledger = Ledger(state.admitted, state.trained, Counter(state.lost), state.restarted_tokens)
        self._problems.restore(state.order, state.num_problems, state.requeued)
        self._limits.restore(state.failures)
        if self._tail is not None:
            self._tail.restore(state.trained + len(state.buffered), state.is_long_round, state.set_aside)
        for due, group in state.buffered:
            self._buffer.add(group, due)
        interrupts = self._segment.drain is None
        keeps_tokens = interrupts or self._engine.loaded_version == state.loaded_version
        for running in state.running:
            record = running
            if not keeps_tokens:  # its episodes begin anew
                record = msgspec.structs.replace(running, journals=(), ended_tokens=0)
                self.ledger.restarted_tokens += running.ended_tokens
            self._running[record.group_id] = OpenGroup(record)
        self._admission.restore(state.trained, state.loaded_version, state.outstanding)

    async def _resume_groups(self, tasks: asyncio.TaskGroup) -> None:
        """Start the restored groups, and let their envs take in the recorded turns before anything else happens."""
        if not self._running:
            return
        for group in self._running.values():
            self._begin(group, tasks)
        for _ in range(PASSES_UNTIL_RECALLED):
            await asyncio.sleep(0)

    def _set_aside(self) -> tuple[Attempt, ...]:
        return () if self._tail is None else tuple(self._tail.set_aside)

    @property
    def open_tokens(self) -> int:
        """Return how many tokens the ended episodes of running groups have sampled."""
        return sum(group.ended_tokens for group in self._running.values())

    @property
    def num_groups(self) -> tuple[int, int]:
        """Return how many groups run, and how many have finished and wait for their step."""
        return len(self._running), len(self._buffer)
