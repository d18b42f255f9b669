"""Evaluate the versions of a run of 60 steps by a replica whose scores and failures a test sets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from arl import clock
from arl.config.recipe import Recipe
from arl.metrics.recorder import Recorder
from arl.run.evaluation.during import BackgroundEvaluations
from arl.run.evaluation.scoreboard import Scoreboard
from arl.types import Accuracy
from tests.metrics.test_recorder import idle_recorder

RECIPE = {
    "model": {"path": "m"},
    "data": {"task": "running_checksum"},
    "train": {"steps": 60},
    "eval": {"every": 10},
}


class FakeReplica:
    """Gives version v the accuracy that `scores` names; what `fails` returns for a version is raised."""

    def __init__(self, scores: dict[int, float], makes_way: bool = False) -> None:
        self.scores = scores
        self.fails: Callable[[int], Exception | None] = lambda version: None
        self.gates: dict[int, asyncio.Event] = {}
        self.makes_way = makes_way
        self.measured: list[int] = []
        self.restarts = 0
        self.began = asyncio.Event()

    async def measure(self, version: int, model: Path) -> Sequence[Accuracy]:
        assert model.name == f"step_{version}"
        self.measured.append(version)
        self.began.set()
        if (error := self.fails(version)) is not None:
            raise error
        if version in self.gates:
            await self.gates[version].wait()
        return [Accuracy(self.scores[version], 8, version)]

    async def restart(self) -> None:
        self.restarts += 1

    async def hurry(self) -> None:
        self.makes_way = False
        self.gates.clear()


class Beside:
    """Evaluations of a run of 60 steps in `directory`, with everything around them."""

    def __init__(self, directory: Path, replica: FakeReplica, recorder: Recorder, begins: int = 0) -> None:
        self.notes: list[str] = []
        self.directory = directory
        self.board = Scoreboard(directory, "held_out", begins, recorder, self.notes.append)

        @contextlib.asynccontextmanager
        async def opened() -> AsyncIterator[FakeReplica]:
            yield replica

        recipe = Recipe.model_validate(RECIPE)
        is_done = begins == recipe.train.steps
        self.evaluations = BackgroundEvaluations(
            directory, recipe, begins, is_done, opened, self.board, self.notes.append
        )

    def save(self, *versions: int, last: int = 60) -> None:
        for version in versions:
            (self.directory / "checkpoints" / f"step_{version}").mkdir(parents=True, exist_ok=True)
            self.evaluations.saved(version, is_last=version == last)

    async def end(self) -> None:
        self.evaluations.finish()
        async with clock.deadline(10, "test", "the evaluations"):
            await self.evaluations.run()

    @property
    def best(self) -> str:
        return (self.directory / "checkpoints" / "best").readlink().name


def in_run(
    directory: Path,
    body: Callable[[Recorder], Coroutine[Any, Any, None]],
    virtual: bool = False,
) -> list[dict[str, Any]]:
    """Run `body` with a recorder; return what it recorded."""

    async def main() -> list[dict[str, Any]]:
        with idle_recorder(directory, admitted=lambda: 0) as recorder:
            await body(recorder)
            return recorder.read_records()

    return clock.run(main, virtual=virtual)
