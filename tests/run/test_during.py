"""Versions are evaluated beside a run: each once, in order, on its own weights, and never at the cost of the run."""

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from arl import clock
from arl.config.recipe import Recipe
from arl.errors import ProcessDied, RecipeError
from arl.launch.base import Node, Process
from arl.launch.placement import place
from arl.launch.spawn import RUNS
from arl.metrics.recorder import Recorder
from arl.run.evaluation.during import BackgroundEvaluations
from arl.run.evaluation.results import SuiteOutput
from arl.run.evaluation.scoreboard import Scoreboard
from arl.run.evaluation.scores import score_samples
from tests.metrics.test_recorder import idle_recorder
from tests.run.evaluation.test_scores import sample

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
        self.states: dict[int, str] = {}  # of the process of a version
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
        output.finish(score_samples("held_out", [sample("p", 0, self.scores[version], policy_version=version)]))

    async def state(self) -> str:
        return self.states.get(self.measured[-1], RUNS)

    def __str__(self) -> str:
        return "evaluation (pid 7)"

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


class Beside:
    """Evaluations of a run of 60 steps in `directory`, with everything around them."""

    def __init__(self, directory: Path, processes: FakeProcesses, recorder: Recorder, begins: int = 0) -> None:
        self.notes: list[str] = []
        self.directory = directory
        recipe = Recipe.model_validate(RECIPE)
        self.board = Scoreboard(directory, recipe, begins, recorder, self.notes.append)
        self.evaluations = BackgroundEvaluations(
            self.board, begins, begins == recipe.train.steps, lambda version: processes.start(directory, version)
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
        with idle_recorder(directory, admitted=0) as recorder:
            await body(recorder)
            return list(recorder.read_records())

    return clock.run(main, virtual=True)


def test_of_too_many_that_wait_the_oldest_is_left_out_and_said(tmp_path: Path) -> None:
    processes = FakeProcesses({10: 0.0, 30: 0.1, 40: 0.2})
    processes.hanging[10] = asyncio.Event()

    async def body(recorder: Recorder) -> None:
        beside = Beside(tmp_path, processes, recorder)
        beside.save(10)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(beside.evaluations.run())
            await processes.began.wait()
            beside.save(20, 30, 40)
            assert set(beside.evaluations.waiting) == {10, 30, 40}
            processes.hanging[10].set()
            beside.evaluations.finish()
        assert beside.notes[0].startswith("version 20 is not evaluated: 2 newer versions wait")

    in_run(tmp_path, body)
    assert processes.measured == [10, 30, 40]


def test_a_failure_or_a_deadline_leaves_out_its_version_alone(tmp_path: Path) -> None:
    processes = FakeProcesses({30: 0.3, 40: 0.4})
    processes.errors = {10: "evaluation exited with code 1"}
    processes.hanging = {20: asyncio.Event()}  # never set

    async def body(recorder: Recorder) -> None:
        beside = Beside(tmp_path, processes, recorder)
        beside.save(10, 15, 20, 20, 30)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(beside.evaluations.run())
            await beside.until_measured(30)
            beside.save(40)
            beside.evaluations.finish()
            await running
        left_out = [note for note in beside.notes if "is not evaluated" in note]
        assert left_out[0] == "version 10 is not evaluated: evaluation exited with code 1"
        assert left_out[1].startswith("version 20 is not evaluated: evaluation waited 2710 s for the next answer")

    records = in_run(tmp_path, body)
    assert [(r["step"], r["policy_version"], r["eval/held_out/accuracy"]) for r in records] == [
        (30, 30, 0.3),
        (40, 40, 0.4),
    ]
    assert processes.measured == [10, 20, 30, 40]
    lines = (tmp_path / "evaluations" / "scores.jsonl").read_bytes().splitlines()
    assert [msgspec.json.decode(line)["model"] for line in lines] == ["step_30", "step_40"]


def test_an_evaluation_may_take_as_long_as_it_writes_answers_and_two_minutes_where_it_is_stopped(
    tmp_path: Path,
) -> None:
    processes = FakeProcesses({50: 0.6})
    processes.hanging = {10: asyncio.Event(), 50: asyncio.Event()}
    processes.states = {10: "is stopped"}
    answers = tmp_path / "evaluations" / "step_50"

    async def body(recorder: Recorder) -> None:
        beside = Beside(tmp_path, processes, recorder)
        beside.save(10, 50)
        beside.evaluations.finish()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(beside.evaluations.run())
            await asyncio.sleep(200)
            assert beside.notes[1:] == ["version 10 is not evaluated: evaluation (pid 7) is stopped for 120 s now"]
            answers.mkdir()
            for count in range(1, 5):
                (answers / "samples.jsonl").write_text("x" * count)
                await asyncio.sleep(1500)
            shutil.rmtree(answers)
            processes.hanging[50].set()
        assert beside.board.measured(50)

    in_run(tmp_path, body)


def test_a_resumed_run_measures_what_waited_and_records_again_what_its_files_lost(tmp_path: Path) -> None:
    async def before(recorder: Recorder) -> None:
        beside = Beside(tmp_path, FakeProcesses({10: 0.9, 40: 1.0}), recorder)
        beside.save(10, 40)
        await beside.end()
        (tmp_path / "checkpoints" / "step_40").rename(tmp_path / "checkpoints" / "refused_step_40")
        (tmp_path / "checkpoints" / "step_20").mkdir()

    in_run(tmp_path, before)
    (tmp_path / "metrics.jsonl").write_text("")  # cut back to a checkpoint that is older than the records
    processes = FakeProcesses({20: 0.2})

    async def after(recorder: Recorder) -> None:
        beside = Beside(tmp_path, processes, recorder, begins=30)
        assert beside.best == "step_10"
        await beside.end()

    records = in_run(tmp_path, after)
    assert [(r["step"], r["eval/held_out/accuracy"]) for r in records] == [(10, 0.9), (20, 0.2)]
    assert processes.measured == [20]
    assert b'"step_40"' not in (tmp_path / "evaluations" / "scores.jsonl").read_bytes()


def test_an_evaluation_beside_a_run_needs_devices_of_its_own_on_gpus() -> None:
    recipe = Recipe.model_validate(RECIPE)
    assert place(recipe, [Node("n", 8, ("0", "1", "2"))]).evaluation.devices == ("2",)  # type: ignore[union-attr]
    with pytest.raises(RecipeError, match=r"3 GPUs are needed, and there are 2 .* evaluation during training 1"):
        place(recipe, [Node("n", 8, ("0", "1"))])
