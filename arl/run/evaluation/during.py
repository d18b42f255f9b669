"""Evaluate versions while training goes on.

    processes      step ─► checkpoint of a due version ─► waiting ─► a process beside the run ─► Scoreboard
                                                             │                  │
                                                             │                  └─► fails, or is too slow: left out
                                                             └─► more than MAX_WAITING: the oldest is left out

    one process    step ─► weights are saved ─► another event loop, in virtual time of its own ─► Scoreboard

The process does what `arl eval` does (arl.run.evaluation.beside). The weights come from the checkpoint's files, so a
score is of exactly its version, with every transport and backend. Nothing of this is seen by the controller: no token
reaches the buffer, the ledger or the trajectories, and a failure leaves out a version, and never ends the run.

In one process the run's loop stands still meanwhile. Its clock, its tasks and its weights do not see the evaluation, so
a run with eval.every equals the run without it to the last bit, but for the records of the evaluations.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from arl import clock
from arl.clock import budget, now
from arl.config.recipe import Recipe
from arl.errors import RunError, leaves
from arl.files import remove_any, writing
from arl.launch.base import Process
from arl.metrics.spans import span
from arl.rollout.base import Observer
from arl.run.evaluation.results import SCORES, read_scores
from arl.run.evaluation.scoreboard import CHECKPOINTS, EVALUATIONS, Scoreboard
from arl.types import Accuracy, Batch, StepResult, StepWaits

MODULE = "arl.run.evaluation.beside"  # measures one version
PREFIX = "model_"  # of a directory below checkpoints/ that holds weights alone, from which no run is resumed
NO_TIME = "no time is left after training"
MAX_WAITING = 2  # beside the one that is measured; each holds the disk of one checkpoint
AFTER_TRAINING = 600.0  # seconds in which a run measures what still waits when it is done, at most


def is_measured(recipe: Recipe, version: int, is_last: bool) -> bool:
    """Return whether a version is measured during training, which takes eval.every.

    The last one always is, unless the run itself measures all of it after training.

    Args:
        is_last: the run ends with it, by `train.steps` or earlier by `train.tokens`.
    """
    if is_last:
        return not recipe.eval.only_held_out
    return version % recipe.eval.every == 0


class Evaluations:
    """Evaluate versions of one segment of a run; this class evaluates none.

    See BackgroundEvaluations and InPlaceEvaluations.
    """

    @property
    def waiting(self) -> Collection[int]:
        """Return the versions whose checkpoints are still needed."""
        return ()

    def due(self, version: int) -> bool:
        """Return whether a checkpoint of this version, which is not the last one, is wanted."""
        return False

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


class BackgroundEvaluations(Evaluations):
    """Evaluate checkpoints, each by a process beside the run.

    Args:
        run: directory of the run.
        recipe: its `eval` and deadlines count.
        begins: the version that the run begins with; due checkpoints up to it that have no scores are evaluated first.
        is_done: it is the last version as well: a run is resumed whose steps were all trained.
        start: starts the process that measures a version.
        board: keeps the scores.
        note: is called with one line about what is not measured.
    """

    def __init__(
        self,
        run: Path,
        recipe: Recipe,
        begins: int,
        is_done: bool,
        start: Callable[[int], Awaitable[Process]],
        board: Scoreboard,
        note: Callable[[str], None],
    ) -> None:
        self._run = run
        self._recipe = recipe
        self._start = start
        self._board = board
        self._note = note
        self._queue: deque[int] = deque()
        self._current: int | None = None  # the version that is being measured
        self._changed = asyncio.Event()  # the queue has grown, or has ended
        self._timeout: asyncio.Timeout | None = None  # of the version that is being measured
        self._end = math.inf  # of all evaluations, on the clock; known when training is done
        self.num_left_out = 0
        for version in range(1, begins + 1):
            if self._model(version).exists():
                self.saved(version, is_last=is_done and version == begins)

    @property
    def waiting(self) -> Collection[int]:
        """See Evaluations. The one that is being measured is among them."""
        return {*self._queue} if self._current is None else {*self._queue, self._current}

    def due(self, version: int) -> bool:
        """See Evaluations."""
        return is_measured(self._recipe, version, is_last=False)

    def saved(self, version: int, is_last: bool) -> None:
        """See Evaluations. Of too many that wait, the oldest is left out, because the newest says most."""
        if not is_measured(self._recipe, version, is_last):
            return
        if version in self.waiting or self._board.measured(version):
            return
        self._queue.append(version)
        if len(self.waiting) > 1 + MAX_WAITING:
            self._leave_out(self._queue.popleft(), f"{MAX_WAITING} newer versions wait; raise eval.every")
        self._changed.set()

    def finish(self) -> None:
        """See Evaluations. What still waits is measured, for AFTER_TRAINING at most."""
        self._end = now() + min(AFTER_TRAINING, self._recipe.deadlines.evaluation)
        self._changed.set()
        if self._timeout is not None:
            when = self._timeout.when()
            assert when is not None
            self._timeout.reschedule(min(when, self._end))
        if self.waiting:
            versions = ", ".join(str(version) for version in sorted(self.waiting))
            self._note(f"training is done; versions that are still evaluated: {versions}")

    async def run(self) -> None:
        """See Evaluations.

        Consumes saved versions, in order. Waits for the next one and for its scores, within deadlines.evaluation.
        Unblocked by `saved`, by `finish`, and by the process.
        """
        while await self._next():
            version = self._queue.popleft()
            self._current = version
            try:
                with span("evaluation", f"version {version}"):
                    accuracies = await self._measure(version)
            except Exception as error:  # whatever it is, an evaluation does not end a run
                cause = next(leaves(error))
                why = str(cause) if isinstance(cause, RunError) else f"{type(cause).__name__}: {cause}"
                self._leave_out(version, NO_TIME if now() >= self._end else why)
            else:
                self._board.add(self._model(version), accuracies)
            self._current = None

    async def _next(self) -> bool:
        """Wait until a version waits to be measured; return False if none will. Training has deadlines of its own."""
        while not self._queue and self._end == math.inf:
            self._changed.clear()
            await self._changed.wait()
        while self._queue and now() >= self._end:
            self._leave_out(self._queue.popleft(), NO_TIME)
        return bool(self._queue)

    async def _measure(self, version: int) -> Sequence[Accuracy]:
        """Have one version measured by a process of its own, whose children end with it.

        Raises:
            RunError: the process has failed, or took too long.
        """
        directory = self._run / EVALUATIONS / self._model(version).name
        remove_any(directory)  # of an evaluation that was interrupted, perhaps before the step was trained again
        process = await self._start(version)
        seconds = min(self._recipe.deadlines.evaluation, self._end - now())
        try:
            async with budget(seconds, "evaluation", f"the scores of version {version}") as self._timeout:
                died = await process.died()
        finally:
            self._timeout = None
            await process.stop(self._recipe.deadlines.shutdown)
        if process.exit_code != 0:
            raise died
        accuracies = [scored.score.accuracy for scored in read_scores(directory / SCORES)]
        assert {accuracy.version for accuracy in accuracies} == {version}
        return accuracies

    def _leave_out(self, version: int, why: str) -> None:
        self.num_left_out += 1
        self._note(f"version {version} is not evaluated ({self.num_left_out} so far): {why}")

    def _model(self, version: int) -> Path:
        return self._run / CHECKPOINTS / f"step_{version}"


class InPlaceEvaluations(Evaluations):
    """Evaluate each due version before the next event of the run.

    No checkpoint is wanted for it, because that would change the schedule. Held-out problems of the last version are
    evaluated by the run itself, after training.

    Args:
        run: directory of the run.
        save: writes the trainer's present weights to a directory, for `from_pretrained`.
        measure: returns the accuracy of a directory's weights, which are this version.
        note: is called with one line about a version that is not measured.
    """

    def __init__(
        self,
        run: Path,
        recipe: Recipe,
        save: Callable[[Path], None],
        measure: Callable[[Path, int], Coroutine[Any, Any, Sequence[Accuracy]]],
        board: Scoreboard,
        note: Callable[[str], None],
    ) -> None:
        self._checkpoints = run / CHECKPOINTS
        self._recipe = recipe
        self._save = save
        self._measure = measure
        self._board = board
        self._note = note
        self.finish()

    def stepped(self, version: int, is_last: bool) -> None:
        """See Evaluations."""
        if self._board.measured(version) or not is_measured(self._recipe, version, is_last):
            return
        model = self._checkpoints / f"{PREFIX}{version}"
        with writing(model):
            self._checkpoints.mkdir(exist_ok=True)
            self._save(model)
        try:
            # A thread, because a thread has at most one running loop; only one of the two computes at any time.
            with ThreadPoolExecutor(max_workers=1, thread_name_prefix="evaluation") as thread:
                accuracies = thread.submit(clock.run, lambda: self._measure(model, version), virtual=True).result()
        except Exception as error:  # whatever it is, an evaluation does not end a run
            cause = next(leaves(error))
            self._note(f"version {version} is not evaluated: {type(cause).__name__}: {cause}")
        else:
            self._board.add(model, accuracies)
        self.finish()

    def finish(self) -> None:
        """See Evaluations. Remove every directory of weights but the best one, and what a kill left half written."""
        best = self._board.best
        for model in [*sorted(self._checkpoints.glob(f"{PREFIX}*")), *sorted(self._checkpoints.glob(f".{PREFIX}*"))]:
            if best is None or model.name != best.model:
                remove_any(model)
