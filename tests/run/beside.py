"""Evaluate the versions of a run of 60 steps by a process whose scores and failures a test sets."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import msgspec

from arl import clock
from arl.config.recipe import Recipe
from arl.launch.base import Process
from arl.metrics.recorder import Recorder
from arl.run.evaluation.during import OUTCOME, BackgroundEvaluations, MeasureOutcome
from arl.run.evaluation.scoreboard import Scoreboard
from arl.types import Accuracy
from tests.metrics.test_recorder import idle_recorder

RECIPE = {
    "model": {"path": "m"},
    "data": {"task": "running_checksum"},
    "train": {"steps": 60},
    "eval": {"every": 10},
}


class FakeProcesses:
    """Give version v the accuracy that `scores` names, or its `errors`, or none as long as it is in `hanging`.

    One process after the other runs, each for one version.
    """

    def __init__(self, scores: dict[int, float]) -> None:
        self.scores = scores
        self.errors: dict[int, str] = {}
        self.dies: set[int] = set()
        self.hanging: dict[int, asyncio.Event] = {}
        self.measured: list[int] = []
        self.began = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    async def start(self, version: int, on_line: Callable[[str], None]) -> Process:
        assert self._running is None, "the one before has ended"
        self._running = asyncio.create_task(self._measure(version, on_line))
        return cast(Process, self)

    async def _measure(self, version: int, on_line: Callable[[str], None]) -> None:
        self.measured.append(version)
        self.began.set()
        if version in self.hanging:
            await self.hanging[version].wait()
        if version in self.dies:
            return
        outcome = MeasureOutcome(error=self.errors.get(version, ""))
        if not outcome.error:
            outcome = MeasureOutcome((Accuracy(self.scores[version], 8, version),))
        on_line(f"{OUTCOME}{msgspec.json.encode(outcome).decode()}")

    async def ended(self) -> str:
        assert self._running is not None
        await asyncio.wait({self._running})
        return "evaluation (pid 7) was killed by signal 9"

    async def stop(self, seconds: float) -> None:
        assert self._running is not None
        self._running.cancel()
        await asyncio.wait({self._running})
        self._running = None


class Beside:
    """Evaluations of a run of 60 steps in `directory`, with everything around them."""

    def __init__(self, directory: Path, processes: FakeProcesses, recorder: Recorder, begins: int = 0) -> None:
        self.notes: list[str] = []
        self.directory = directory
        self.board = Scoreboard(directory, "held_out", begins, recorder, self.notes.append)
        recipe = Recipe.model_validate(RECIPE)
        self.evaluations = BackgroundEvaluations(
            directory,
            recipe,
            begins,
            begins == recipe.train.steps,
            processes.start,
            self.board,
            self.notes.append,
        )

    def save(self, *versions: int, last: int = 60) -> None:
        for version in versions:
            (self.directory / "checkpoints" / f"step_{version}").mkdir(parents=True, exist_ok=True)
            self.evaluations.saved(version, is_last=version == last)

    async def until_measured(self, version: int) -> None:
        while True:
            if self.board.measured(version):
                return
            await asyncio.sleep(1)

    async def end(self) -> None:
        self.evaluations.finish()
        await self.evaluations.run()

    @property
    def best(self) -> str:
        return (self.directory / "checkpoints" / "best").readlink().name


def in_run(directory: Path, body: Callable[[Recorder], Coroutine[Any, Any, None]]) -> list[dict[str, Any]]:
    """Run `body` with a recorder, in virtual time; return what it recorded."""

    async def main() -> list[dict[str, Any]]:
        with idle_recorder(directory, admitted=lambda: 0) as recorder:
            await body(recorder)
            return recorder.read_records()

    return clock.run(main, virtual=True)
