"""Evaluate versions while training goes on.

    processes      step ─► checkpoint of a due version ─► waiting ─► a process beside the run ─► Scoreboard
                                                             │                  │
                                                             │                  └─► fails, or is too slow: left out
                                                             └─► more than MAX_WAITING: the oldest is left out

    one process    step ─► weights are saved ─► another event loop, in virtual time of its own ─► Scoreboard

The process is `arl eval`. The weights come from the checkpoint's files,
so a score is of exactly its version, with every transport and backend. Nothing of this is seen by the controller: no
token reaches the buffer, the ledger or the trajectories, and a failure leaves out a version, and never ends the run.

In one process the run's loop stands still meanwhile. Its clock, its tasks and its weights do not see the evaluation, so
a run with eval.every equals the run without it to the last bit, but for the records of the evaluations.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from arl import clock
from arl.clock import outer_deadline
from arl.config.recipe import Recipe
from arl.errors import RunError
from arl.files import remove_any, writing
from arl.launch.base import Command, Process, Resources
from arl.launch.spawn import RUNS
from arl.metrics.run_files import LOGS, RECIPE
from arl.metrics.spans import span
from arl.run.evaluation.results import SCORES, read_scores
from arl.run.evaluation.scoreboard import CHECKPOINTS, EVALUATIONS, Scoreboard
from arl.run.evaluation.scores import with_mean
from arl.types import Accuracy

PREFIX = "model_"  # of a directory below checkpoints/ that holds weights alone, from which no run is resumed
LOWEST_PRIORITY = 19  # niceness
REWARD_FACTOR = 10  # times as long as in training: the deadline of a reward at the lowest priority
WAITS = ("deadlines.startup", "deadlines.swap", "deadlines.generate", "deadlines.step")  # are as long as all of it
LOOK_SECONDS = 5.0  # between two looks at the process
FROZEN_SECONDS = 120.0  # for which it could not run, at every look
MAX_WAITING = 2  # beside the one that is measured; each holds the disk of one checkpoint


class Evaluations:
    """Evaluate versions of one segment of a run; this class evaluates none.

    See BackgroundEvaluations and InPlaceEvaluations.
    """

    waiting: Sequence[int] = ()
    """Versions whose checkpoints are still needed."""

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


def evaluation_command(recipe: Recipe, run: Path, version: int, resources: Resources) -> Command:
    """Return the `arl eval` that measures a version of the run in directory `run`, on one engine.

    Without a GPU it has the lowest priority, so that training has the cores.
    """
    deadlines = recipe.deadlines
    settings = {
        "engine.replicas": 1,
        "engine.min_replicas": "null",
        "engine.threads": resources.threads,
        "deadlines.reward": REWARD_FACTOR * deadlines.reward,
        **dict.fromkeys(WAITS, deadlines.evaluation),
    }
    priority = () if resources.devices else ("nice", "-n", str(LOWEST_PRIORITY))
    arguments = [
        str(run / CHECKPOINTS / f"step_{version}"),
        f"--suite={','.join(recipe.eval.suites)}",
        f"--problems={recipe.eval.problems}",
        f"--recipe={run / RECIPE}",
        f"--output={run / EVALUATIONS / f'step_{version}'}",
        f"--logs={run / LOGS / 'evaluation'}",
        *(f"--set={field}={value}" for field, value in settings.items()),
    ]
    return Command((*priority, sys.executable, "-m", "arl.cli", "eval", *arguments))


class BackgroundEvaluations(Evaluations):
    """Evaluate checkpoints, each by a process beside the run.

    Args:
        begins: the version that the run begins with; due checkpoints up to it that have no scores are evaluated first.
        is_done: it is the last version as well: a run is resumed whose steps were all trained.
        start: starts the process that measures a version.
    """

    def __init__(
        self, board: Scoreboard, begins: int, is_done: bool, start: Callable[[int], Awaitable[Process]]
    ) -> None:
        self._board = board
        self._start = start
        self.waiting: list[int] = []  # the first one is being measured
        self._changed = asyncio.Event()  # one more waits, or none will follow
        self._has_ended = False
        for version in range(1, begins + 1):
            if (board.checkpoints / f"step_{version}").exists():
                self.saved(version, is_last=is_done and version == begins)

    def due(self, version: int) -> bool:
        """See Evaluations."""
        return self._board.wants(version, is_last=False)

    def saved(self, version: int, is_last: bool) -> None:
        """See Evaluations. Of too many that wait, the oldest is left out, because the newest says most."""
        if version in self.waiting or not self._board.wants(version, is_last):
            return
        self.waiting.append(version)
        if len(self.waiting) > 1 + MAX_WAITING:
            oldest = self.waiting.pop(1)
            self._board.note(f"version {oldest} is not evaluated: {MAX_WAITING} newer versions wait; raise eval.every")
        self._changed.set()

    def finish(self) -> None:
        """See Evaluations."""
        self._has_ended = True
        self._changed.set()
        if self.waiting:
            versions = ", ".join(map(str, self.waiting))
            self._board.note(f"training is done; versions that are still evaluated: {versions}")

    async def run(self) -> None:
        """See Evaluations.

        Consumes saved versions, in order. Waits for the next one and for its answers, each within deadlines.evaluation.
        Unblocked by `saved`, by `finish`, and by the process.
        """
        while self.waiting or not self._has_ended:
            if not self.waiting:  # training has deadlines of its own
                self._changed.clear()
                await self._changed.wait()
                continue
            version = self.waiting[0]
            try:
                with span("evaluation", f"version {version}"):
                    accuracies = await self._measure(version)
            except Exception as error:  # noted; whatever it is, an evaluation does not end a run
                self._board.leave_out(version, error)
            else:
                self._board.add(self._board.checkpoints / f"step_{version}", accuracies)
            self.waiting.pop(0)

    async def _measure(self, version: int) -> Sequence[Accuracy]:
        """Have one version measured by a process of its own, whose children end with it.

        It may take as long as it writes answers.

        Raises:
            RunError: the process has failed, cannot run, or has not written an answer for too long.
        """
        directory = self._board.run / EVALUATIONS / f"step_{version}"
        remove_any(directory)  # of an evaluation that was interrupted, perhaps before the step was trained again
        process = await self._start(version)
        died = asyncio.create_task(process.died(), name=f"evaluation of version {version}")
        try:
            await self._watch(process, directory, died)
        finally:
            died.cancel()
            await process.stop(self._board.recipe.deadlines.shutdown)
        if process.exit_code != 0:
            raise died.result()
        return with_mean([scored.score.accuracy for scored in read_scores(directory / SCORES)])

    async def _watch(self, process: Process, directory: Path, died: asyncio.Future[Any]) -> None:
        """Return when the process has died.

        Raises:
            RunError: it cannot run, or has written no answer into `directory` for too long.
        """
        seconds = self._board.recipe.deadlines.evaluation
        written = 0
        frozen = 0.0
        what = f"the next answer in {directory} (deadlines.startup and deadlines.step)"
        async with outer_deadline(seconds, "evaluation", what) as bound:
            while not died.done():
                await asyncio.wait({died}, timeout=LOOK_SECONDS)
                found = sum(path.stat().st_size for path in directory.rglob("*.jsonl"))  # noqa: ASYNC240 - a few files
                if found != written:
                    written = found
                    bound.reschedule(clock.now() + seconds)
                state = await process.state()
                frozen = 0.0 if state == RUNS else frozen + LOOK_SECONDS
                if frozen >= FROZEN_SECONDS and not died.done():
                    raise RunError(f"{process} {state} for {FROZEN_SECONDS:g} s now")


class InPlaceEvaluations(Evaluations):
    """Evaluate each due version before the next event of the run.

    No checkpoint is wanted for it, because that would change the schedule. Held-out problems of the last version are
    evaluated by the run itself, after training.

    Args:
        save: writes the trainer's present weights to a directory, for `from_pretrained`.
        measure: returns the accuracy of a directory's weights, which are this version.
    """

    def __init__(
        self,
        board: Scoreboard,
        save: Callable[[Path], None],
        measure: Callable[[Path, int], Coroutine[Any, Any, Sequence[Accuracy]]],
    ) -> None:
        self._board = board
        self._save = save
        self._measure = measure
        self.finish()

    def stepped(self, version: int, is_last: bool) -> None:
        """See Evaluations."""
        if not self._board.wants(version, is_last):
            return
        model = self._board.checkpoints / f"{PREFIX}{version}"
        with writing(model):
            self._save(model)
        try:
            # A thread, because a thread has at most one running loop; only one of the two computes at any time.
            with ThreadPoolExecutor(max_workers=1, thread_name_prefix="evaluation") as thread:
                accuracies = thread.submit(clock.run, lambda: self._measure(model, version), virtual=True).result()
        except Exception as error:  # noted; whatever it is, an evaluation does not end a run
            self._board.leave_out(version, error)
        else:
            self._board.add(model, accuracies)
        self.finish()

    def finish(self) -> None:
        """See Evaluations. Remove every directory of weights but the best one, and what a kill left half written."""
        best = self._board.best
        for model in [*self._board.checkpoints.glob(f"{PREFIX}*"), *self._board.checkpoints.glob(f".{PREFIX}*")]:
            if best is None or model.name != best.model:
                remove_any(model)
