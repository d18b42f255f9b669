"""Evaluate versions while training goes on, from checkpoints, one after the other.

    step ─► checkpoint of a due version is on disk ─► waiting ─► a process beside the run measures it ─► Scoreboard
                                                         │                 │
                                                         │                 └─► it fails, or takes too long: left out
                                                         └─► more than MAX_WAITING: the oldest is left out

The process does what `arl eval` does (arl.run.evaluation.beside). The weights come from the checkpoint's files, so a
score is of exactly its version, with every transport and backend. Nothing of this is seen by the controller: no token
reaches the buffer, the ledger or the trajectories, and a failure leaves out a version, and never ends the run.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec

from arl.clock import budget, now
from arl.config.recipe import Recipe
from arl.errors import DeadlineError, RunError, leaves
from arl.files import replace_file
from arl.launch.base import Process
from arl.metrics.spans import span
from arl.rollout.base import Observer
from arl.run.evaluation.beside import NEXT, NOTE, OUTCOME, MeasureOutcome, MeasureRequest
from arl.run.evaluation.scoreboard import CHECKPOINTS, Scoreboard
from arl.types import Accuracy, Batch, StepResult, StepWaits

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

    See BackgroundEvaluations, and InPlaceEvaluations in arl.run.evaluation.in_place.
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
    """Evaluate checkpoints, by a process beside the run.

    Args:
        run: directory of the run.
        recipe: its `eval` and deadlines count.
        begins: the version that the run begins with; due checkpoints up to it that have no scores are evaluated first.
        is_done: it is the last version as well: a run is resumed whose steps were all trained.
        start: starts the process, and has a function called with every line of its output.
        board: keeps the scores.
        note: is called with one line about what is not measured.
    """

    def __init__(
        self,
        run: Path,
        recipe: Recipe,
        begins: int,
        is_done: bool,
        start: Callable[[Callable[[str], None]], Awaitable[Process]],
        board: Scoreboard,
        note: Callable[[str], None],
    ) -> None:
        self._run = run
        self._recipe = recipe
        self._start = start
        self._board = board
        self._note = note
        self._queue: deque[int] = deque()
        self._current: int | None = None
        self._changed = asyncio.Event()  # the queue has grown, or has ended
        self._process: Process | None = None
        self._outcome: asyncio.Future[MeasureOutcome] | None = None
        self._bound: asyncio.Timeout | None = None  # of what is measured
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
        if self._bound is not None:
            when = self._bound.when()
            assert when is not None
            self._bound.reschedule(min(when, self._end))
        if self.waiting:
            versions = ", ".join(str(version) for version in sorted(self.waiting))
            self._note(f"training is done; versions that are still evaluated: {versions}")

    async def run(self) -> None:
        """See Evaluations.

        Consumes saved versions, in order. Waits for the next one and for its scores, within deadlines.evaluation.
        Unblocked by `saved`, by `finish`, and by the process.
        """
        try:
            while await self._next():
                version = self._queue.popleft()
                self._current = version
                try:
                    with span("evaluation", f"version {version}"):
                        accuracies = await self._measure(version)
                except Exception as error:  # whatever it is, an evaluation does not end a run
                    self._leave_out(version, self._why(next(leaves(error))))
                    await self._stop()  # the next version has a process and an engine of its own
                else:
                    self._board.add(self._model(version), accuracies)
                self._current = None
        finally:
            await self._stop()

    async def _next(self) -> bool:
        """Wait until a version waits to be measured; return False if none will. Training has deadlines of its own."""
        while not self._queue and self._end == math.inf:
            self._changed.clear()
            await self._changed.wait()
        while self._queue and now() >= self._end:
            self._leave_out(self._queue.popleft(), "no time is left after training")
        return bool(self._queue)

    async def _measure(self, version: int) -> Sequence[Accuracy]:
        """Have one version measured.

        Raises:
            RunError: the process has failed, or was not ready in time.
        """
        self._outcome = asyncio.get_running_loop().create_future()
        request = MeasureRequest(version, str(self._model(version).absolute()))
        replace_file(self._run / NEXT, msgspec.json.encode(request))
        if self._process is None:
            self._process = await self._start(self._on_line)
        ended = asyncio.create_task(self._process.ended(), name=f"end of {self._process}")
        seconds = min(self._recipe.deadlines.evaluation, self._end - now())
        try:
            async with budget(seconds, "evaluation", f"the scores of version {version}") as self._bound:
                waits: set[asyncio.Future[Any]] = {ended, self._outcome}
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._bound = None
            ended.cancel()
        if not self._outcome.done():
            raise RunError(await ended)
        outcome = self._outcome.result()
        if outcome.error:
            raise RunError(outcome.error)
        return outcome.accuracies

    def _on_line(self, line: str) -> None:
        """Read one line of the process's output. What comes late, of a version that was left out, is passed over."""
        if line.startswith(NOTE):
            self._note(line.removeprefix(NOTE))
        if not line.startswith(OUTCOME):
            return
        outcome = msgspec.json.decode(line.removeprefix(OUTCOME), type=MeasureOutcome)
        if self._outcome is not None and not self._outcome.done() and outcome.version == self._current:
            self._outcome.set_result(outcome)

    async def _stop(self) -> None:
        """End the process with everything that it has started."""
        if self._process is not None:
            process, self._process = self._process, None
            await process.stop(self._recipe.deadlines.shutdown)

    def _why(self, cause: BaseException) -> str:
        """Say why a version is left out."""
        if isinstance(cause, DeadlineError) and now() >= self._end:
            return "no time is left after training"
        return str(cause) if isinstance(cause, RunError) else f"{type(cause).__name__}: {cause}"

    def _leave_out(self, version: int, why: str) -> None:
        self.num_left_out += 1
        self._note(f"version {version} is not evaluated ({self.num_left_out} so far): {why}")

    def _model(self, version: int) -> Path:
        return self._run / CHECKPOINTS / f"step_{version}"
