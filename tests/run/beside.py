"""Evaluate the versions of a run of 60 steps by a process whose scores and failures a test sets."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

from arl import clock
from arl.config.recipe import Recipe
from arl.errors import ProcessDied
from arl.launch.base import Process
from arl.metrics.recorder import Recorder
from arl.run.evaluation.during import BackgroundEvaluations
from arl.run.evaluation.results import SuiteOutput
from arl.run.evaluation.scoreboard import Scoreboard
from arl.run.evaluation.scores import Sample, score_samples
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
        self.exit_code = 0
        self.hanging: dict[int, asyncio.Event] = {}
        self.measured: list[int] = []
        self.began = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    async def start(self, directory: Path, version: int) -> Process:
        assert self._running is None, "the one before has ended"
        self.exit_code = 1 if version in self.errors else 0
        self._running = asyncio.create_task(self._measure(directory, version))
        return cast(Process, self)

    async def _measure(self, directory: Path, version: int) -> None:
        self.measured.append(version)
        self.began.set()
        if version in self.hanging:
            await self.hanging[version].wait()
        if version in self.errors:
            raise ProcessDied(self.errors[version])
        output = SuiteOutput(directory / "evaluations" / f"step_{version}", {"suite": "held_out"}, {})
        output.directory.mkdir(parents=True)
        output.finish(score_samples("held_out", [sample(version, self.scores[version])], num_samples=1))

    async def died(self) -> ProcessDied:
        assert self._running is not None
        await asyncio.wait({self._running})
        error = self._running.exception()
        return error if isinstance(error, ProcessDied) else ProcessDied("evaluation exited with code 0")

    async def stop(self, seconds: float) -> None:
        assert self._running is not None
        self._running.cancel()
        await asyncio.wait({self._running})
        self._running = None


def sample(version: int, correct: float) -> Sample:
    """Make the only sample of an evaluation."""
    return Sample(
        problem_id="p",
        sample=0,
        prompt="",
        response="",
        answer="",
        extracted="",
        correct=correct,
        parts={},
        num_tokens=1,
        truncated=False,
        error="",
        policy_version=version,
    )


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
            lambda version: processes.start(directory, version),
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
