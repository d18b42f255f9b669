"""Evaluate versions while training goes on, from checkpoints, one after the other.

    step ─► checkpoint of a due version is on disk ─► waiting ─► Measure: a replica loads it, and answers ─► Scoreboard
                                                         │                │
                                                         │                ├─► its engine is lost: restarted once
                                                         │                └─► its deadline is over: left out
                                                         └─► more than MAX_WAITING: the oldest is left out

The weights come from the checkpoint's files, so a score is of exactly its version, with every transport and backend.
Nothing of this is seen by the controller: no token reaches the buffer, the ledger or the trajectories, and a failure
leaves out versions, and never ends the run.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from arl.clock import budget, now
from arl.config.recipe import Recipe
from arl.engine.supervisor import RESTART_WINDOW, RecentLosses
from arl.errors import DeadlineError, leaves
from arl.metrics.spans import span
from arl.rollout.base import Observer
from arl.run.evaluation.scoreboard import CHECKPOINTS, Scoreboard
from arl.types import Accuracy, Batch, StepResult, StepWaits

MAX_WAITING = 2  # beside the one that is measured; each holds the disk of one checkpoint
MAX_RESTARTS = 1  # of the replica in RESTART_WINDOW


def is_measured(recipe: Recipe, version: int, is_last: bool) -> bool:
    """Return whether a version is measured during training, which takes eval.every.

    The last one always is, unless the run itself measures all of it after training.

    Args:
        is_last: the run ends with it, by `train.steps` or earlier by `train.tokens`.
    """
    if is_last:
        return not recipe.eval.only_held_out
    return version % recipe.eval.every == 0


class Evaluations(Protocol):
    """Evaluate versions of one segment of a run. See BackgroundEvaluations and InPlaceEvaluations."""

    @property
    def waiting(self) -> Collection[int]:
        """Return the versions whose checkpoints are still needed."""

    def due(self, version: int) -> bool:
        """Return whether a checkpoint of this version, which is not the last one, is wanted."""

    def stepped(self, version: int, is_last: bool) -> None:
        """Note that the trainer has finished a step; no other code runs until this returns."""

    def saved(self, version: int, is_last: bool) -> None:
        """Note that the checkpoint of a version is complete."""

    async def run(self) -> None:
        """Evaluate, and return after `finish` when nothing waits. Runs beside the controller."""

    def finish(self) -> None:
        """Note that no version will follow."""


class SteppedObserver:
    """Implement Observer over another one, and call `stepped` with the version of each step that it has recorded."""

    def __init__(self, observer: Observer, stepped: Callable[[int], None]) -> None:
        self._observer = observer
        self._stepped = stepped
        self.group_finished = observer.group_finished
        self.group_lost = observer.group_lost
        self.swapped = observer.swapped

    def step_finished(self, batch: Batch, result: StepResult, waits: StepWaits) -> None:
        """See Observer."""
        self._observer.step_finished(batch, result, waits)
        self._stepped(result.version)


class NoEvaluations:
    """Implement Evaluations without any."""

    waiting: Collection[int] = ()

    def due(self, version: int) -> bool:
        """See Evaluations."""
        return False

    def stepped(self, version: int, is_last: bool) -> None:
        """See Evaluations."""

    def saved(self, version: int, is_last: bool) -> None:
        """See Evaluations."""

    async def run(self) -> None:
        """See Evaluations."""

    def finish(self) -> None:
        """See Evaluations."""


class NotMeasured(Exception):
    """Report that the episodes of a version could not be run or scored, which another engine would not change."""


class Measure(Protocol):
    """Measure versions on an engine of its own. See arl.run.evaluation.replica."""

    async def measure(self, version: int, model: Path) -> Sequence[Accuracy]:
        """Return the accuracy of the weights in directory `model` on every suite.

        Raises:
            RunError: its engine failed, and `restart` may help.
            NotMeasured: see there; the message says why.
        """

    @property
    def makes_way(self) -> bool:
        """Return whether its processes have a lower priority than others."""

    async def restart(self) -> None:
        """End the engine with all of its processes. The next call of `measure` starts another one."""

    async def hurry(self) -> None:
        """Restart, and make way no more."""


class BackgroundEvaluations:
    """Implement Evaluations from checkpoints, beside the run.

    Args:
        run: directory of the run.
        recipe: its `eval` and deadlines count.
        begins: the version that the run begins with; due checkpoints up to it that have no scores are evaluated first.
        is_done: it is the last version as well: a run is resumed whose steps were all trained.
        replica: opens what measures; it is opened once, and closed at the end.
        board: keeps the scores.
        note: is called with one line about what is not measured.
    """

    def __init__(
        self,
        run: Path,
        recipe: Recipe,
        begins: int,
        is_done: bool,
        replica: Callable[[], AbstractAsyncContextManager[Measure]],
        board: Scoreboard,
        note: Callable[[str], None],
    ) -> None:
        self._checkpoints = run / CHECKPOINTS
        self._recipe = recipe
        self._replica = replica
        self._board = board
        self._note = note
        self._queue: deque[int] = deque()
        self._current: int | None = None
        self._changed = asyncio.Event()  # the queue has grown, or has ended
        self._finishing = False
        self._interrupt: Callable[[], object] | None = None  # set while what is measured makes way for training
        self._losses = RecentLosses(MAX_RESTARTS, RESTART_WINDOW)
        self._gave_up = False
        self.num_left_out = 0
        for version in range(1, begins + 1):
            if os.path.exists(self._model(version)):
                self.saved(version, is_last=is_done and version == begins)

    @property
    def waiting(self) -> Collection[int]:
        """See Evaluations. The one that is being measured is among them."""
        return {*self._queue} if self._current is None else {*self._queue, self._current}

    def due(self, version: int) -> bool:
        """See Evaluations."""
        return not self._gave_up and is_measured(self._recipe, version, is_last=False)

    def stepped(self, version: int, is_last: bool) -> None:
        """See Evaluations. Waits for the checkpoint instead."""

    def saved(self, version: int, is_last: bool) -> None:
        """See Evaluations. Of too many that wait, the oldest is left out, because the newest says most."""
        if self._gave_up or not is_measured(self._recipe, version, is_last):
            return
        if version in self.waiting or self._board.measured(version):
            return
        self._queue.append(version)
        if len(self.waiting) > 1 + MAX_WAITING:
            self._leave_out(self._queue.popleft(), f"{MAX_WAITING} newer versions wait; raise eval.every")
        self._changed.set()

    def finish(self) -> None:
        """See Evaluations. What makes way for training starts again at the usual priority: others may use the cores."""
        self._finishing = True
        self._changed.set()
        if self._interrupt is not None:
            self._interrupt()
        if self.waiting and not self._gave_up:
            versions = ", ".join(str(version) for version in sorted(self.waiting))
            self._note(f"training is done; versions that are still evaluated: {versions}")

    async def run(self) -> None:
        """See Evaluations.

        Consumes saved versions, in order. Waits for the next one and for its scores, within deadlines.evaluation.
        Unblocked by `saved`, by `finish`, and by the replica.
        """
        async with self._replica() as replica:
            while await self._next():
                version = self._queue.popleft()
                self._current = version
                accuracies = await self._measure(replica, version)
                if accuracies:
                    self._board.add(self._model(version), accuracies)
                self._current = None

    async def _next(self) -> bool:
        """Wait until a version waits to be measured; return False if none will. Training has deadlines of its own."""
        while not self._queue and not self._finishing:
            self._changed.clear()
            await self._changed.wait()
        return bool(self._queue)

    async def _measure(self, replica: Measure, version: int) -> Sequence[Accuracy]:
        """Measure one version; return nothing if that fails."""
        while not self._gave_up:
            if self._finishing and replica.makes_way:
                await replica.hurry()
            try:
                with span("evaluation", f"version {version}"):
                    accuracies = await self._try(replica, version)
            except DeadlineError as error:  # of this version as a whole: its engine may hang, or only be slow
                self._leave_out(version, str(error))
                await replica.restart()
                return ()
            except Exception as error:  # whatever it is, an evaluation does not end a run
                cause = next(leaves(error))
                if isinstance(cause, NotMeasured):
                    self._leave_out(version, str(cause))
                    return ()
                await self._recover(replica, version, cause)
            else:
                if accuracies:
                    return accuracies
        return ()

    async def _try(self, replica: Measure, version: int) -> Sequence[Accuracy]:
        """Measure one version; return nothing if `finish` has interrupted it, so that it is repeated in a hurry."""
        seconds = self._recipe.deadlines.evaluation
        async with (
            budget(seconds, "evaluation", f"the scores of version {version}"),
            asyncio.TaskGroup() as tasks,
        ):
            work = tasks.create_task(replica.measure(version, self._model(version)), name=f"evaluation of {version}")
            if replica.makes_way:
                self._interrupt = work.cancel
        self._interrupt = None
        return () if work.cancelled() else work.result()

    async def _recover(self, replica: Measure, version: int, cause: BaseException) -> None:
        """Have the engine started again, or give up: then no version is evaluated any more."""
        await replica.restart()
        self._losses.add(now(), had_served=True)
        if not self._losses.are_too_many:
            self._note(f"the engine of the evaluation failed at version {version} and is started again: {cause}")
            return
        self._gave_up = True
        self.num_left_out += 1 + len(self._queue)
        self._queue.clear()
        what = "and training goes on, because its engine failed again"
        self._note(f"evaluation is given up at version {version}, {what}: {cause}")

    def _leave_out(self, version: int, why: str) -> None:
        self.num_left_out += 1
        self._note(f"version {version} is not evaluated ({self.num_left_out} so far): {why}")

    def _model(self, version: int) -> Path:
        return self._checkpoints / f"step_{version}"
