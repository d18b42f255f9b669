"""Versions are evaluated beside a run: each once, in order, on its own weights, and never at the cost of the run."""

import asyncio
import contextlib
import importlib.util
import re
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import psutil
import pyarrow.parquet as pq
import pytest

from arl import clock
from arl.config.recipe import Recipe
from arl.config.recipe_file import load_recipe
from arl.errors import EngineLost, ProcessDied, RecipeError, RewardError
from arl.launch.address import LOOPBACK
from arl.launch.base import Node, Resources
from arl.launch.placement import LOWEST_PRIORITY, place
from arl.metrics.console import ConsoleDisplay
from arl.metrics.recorder import Recorder
from arl.run.evaluation.during import BackgroundEvaluations, NotMeasured
from arl.run.evaluation.evaluator_link import EvaluatorLink
from arl.run.evaluation.evaluator_messages import EvaluatorAssignment, MeasureOutcome, recipe_fields
from arl.run.evaluation.scoreboard import Scoreboard, Scores
from arl.run.preflight import preflight
from arl.run.resume import Origin
from arl.run.virtual import measure_in_process
from arl.run.world import Start
from arl.types import Accuracy, StartingVersions
from tests.metrics.test_recorder import idle_recorder
from tests.processes import survivors
from tests.run.test_train import Command, start

__all__ = ["start"]
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


def test_each_due_version_is_measured_once_in_order_and_recorded_as_itself(tmp_path: Path) -> None:
    replica = FakeReplica({10: 0.3, 20: 0.5})

    async def body(recorder: Recorder) -> None:
        beside = Beside(tmp_path, replica, recorder)
        beside.save(10, 15, 20, 20)
        await beside.end()
        assert beside.best == "step_20"

    records = in_run(tmp_path, body)
    assert [(r["step"], r["policy_version"], r["eval/held_out/accuracy"]) for r in records] == [
        (10, 10, 0.3),
        (20, 20, 0.5),
    ]
    assert replica.measured == [10, 20]


@pytest.mark.parametrize("last", [60, 20])
def test_the_last_version_is_left_to_the_run_whether_its_steps_or_its_tokens_end_it(tmp_path: Path, last: int) -> None:
    replica = FakeReplica({10: 0.3})

    async def body(recorder: Recorder) -> None:
        beside = Beside(tmp_path, replica, recorder)
        beside.save(10, last, last=last)
        await beside.end()

    in_run(tmp_path, body)
    assert replica.measured == [10]


def test_the_best_stays_the_best_until_another_one_is_better(tmp_path: Path) -> None:
    replica = FakeReplica({10: 0.5, 20: 0.5, 30: 0.4})

    async def body(recorder: Recorder) -> None:
        beside = Beside(tmp_path, replica, recorder)
        beside.save(10, 20)
        await beside.end()
        beside.save(30)
        await beside.end()
        assert beside.best == "step_10"
        best = msgspec.json.decode((tmp_path / "evaluations" / "best.json").read_bytes(), type=Scores)
        assert (best.version, best.of("held_out"), best.of("other")) == (10, 0.5, None)

    in_run(tmp_path, body)


def test_of_equal_scores_the_earlier_version_is_the_best_even_if_it_is_measured_later(tmp_path: Path) -> None:
    async def body(recorder: Recorder) -> None:
        beside = Beside(tmp_path, FakeReplica({20: 0.5}), recorder)
        checkpoints = tmp_path / "checkpoints"
        beside.board.add(checkpoints / "step_60", [Accuracy(0.5, 8, 60)])  # by the run itself, after training
        assert beside.best == "step_60"
        beside.save(20)
        await beside.end()
        assert beside.best == "step_20"

    in_run(tmp_path, body)


def test_of_too_many_that_wait_the_oldest_is_left_out_and_said(tmp_path: Path) -> None:
    replica = FakeReplica({10: 0.0, 30: 0.1, 40: 0.2})
    replica.gates[10] = asyncio.Event()

    async def body(recorder: Recorder) -> None:
        beside = Beside(tmp_path, replica, recorder)
        beside.save(10)
        async with clock.deadline(10, "test", "the evaluations"), asyncio.TaskGroup() as tasks:
            tasks.create_task(beside.evaluations.run())
            await replica.began.wait()
            beside.save(20, 30, 40)
            assert set(beside.evaluations.waiting) == {10, 30, 40}
            replica.gates[10].set()
            beside.evaluations.finish()
        assert beside.evaluations.num_left_out == 1
        assert beside.notes[0].startswith("version 20 is not evaluated (1 so far): 2 newer versions wait")

    in_run(tmp_path, body)
    assert replica.measured == [10, 30, 40]


def test_an_engine_that_is_lost_is_started_again_once_and_then_evaluation_is_given_up(tmp_path: Path) -> None:
    replica = FakeReplica({10: 0.1, 20: 0.2})
    lost = iter([EngineLost("gone"), None, EngineLost("gone again")])
    replica.fails = lambda version: next(lost)

    async def body(recorder: Recorder) -> None:
        beside = Beside(tmp_path, replica, recorder)
        beside.save(10, 20)
        await beside.end()
        assert not beside.evaluations.due(30)
        assert "started again: gone" in beside.notes[-3]
        assert "given up at version 20, and training goes on" in beside.notes[-1]

    records = in_run(tmp_path, body)
    assert replica.measured == [10, 10, 20]
    assert replica.restarts == 2
    assert [r["step"] for r in records] == [10]


def test_versions_that_take_too_long_are_left_out_one_by_one_and_the_next_has_another_engine(tmp_path: Path) -> None:
    replica = FakeReplica({40: 0.4})
    replica.gates = {version: asyncio.Event() for version in (10, 20, 30)}  # never set

    async def body(recorder: Recorder) -> None:
        beside = Beside(tmp_path, replica, recorder)
        beside.save(10, 20, 30)
        beside.evaluations.finish()
        await beside.evaluations.run()
        beside.save(40)
        await beside.end()
        late = [note for note in beside.notes if "waited 3600 s for the scores of version" in note]
        assert [note.partition(":")[0] for note in late] == [
            f"version {version} is not evaluated ({count} so far)" for count, version in enumerate((10, 20, 30), 1)
        ]

    records = in_run(tmp_path, body, virtual=True)
    assert [r["step"] for r in records] == [40]
    assert replica.restarts == 3


@pytest.mark.parametrize("error", [RewardError("no number"), ValueError("of an env")])
def test_episodes_that_cannot_be_scored_leave_out_their_version_alone(tmp_path: Path, error: Exception) -> None:
    replica = FakeReplica({20: 0.2})
    outcome = MeasureOutcome.failed(ExceptionGroup("tasks", [error]))
    assert not outcome.is_of_engine
    replica.fails = lambda version: NotMeasured(outcome.error) if version == 10 else None

    async def body(recorder: Recorder) -> None:
        beside = Beside(tmp_path, replica, recorder)
        beside.save(10, 20)
        await beside.end()
        assert f"{type(error).__name__}: {error}" in beside.notes[1]

    records = in_run(tmp_path, body)
    assert [r["step"] for r in records] == [20]
    assert not replica.restarts


def test_what_made_way_for_training_starts_again_in_a_hurry_when_training_is_done(tmp_path: Path) -> None:
    replica = FakeReplica({10: 0.1, 20: 0.2}, makes_way=True)
    replica.gates[10] = asyncio.Event()  # never set: others have the cores

    async def body(recorder: Recorder) -> None:
        beside = Beside(tmp_path, replica, recorder)
        beside.save(10, 20)
        async with clock.deadline(10, "test", "the evaluations"), asyncio.TaskGroup() as tasks:
            tasks.create_task(beside.evaluations.run())
            await replica.began.wait()
            beside.evaluations.finish()
        assert "still evaluated: 10, 20" in beside.notes[0]

    records = in_run(tmp_path, body)
    assert replica.measured == [10, 10, 20]
    assert [r["step"] for r in records] == [10, 20]


def test_a_resumed_run_measures_what_waited_and_records_again_what_its_files_lost(tmp_path: Path) -> None:
    async def before(recorder: Recorder) -> None:
        beside = Beside(tmp_path, FakeReplica({10: 0.9, 40: 1.0}), recorder)
        beside.save(10, 40)
        await beside.end()
        (tmp_path / "checkpoints" / "step_40").rename(tmp_path / "checkpoints" / "refused_step_40")
        (tmp_path / "checkpoints" / "step_20").mkdir()

    in_run(tmp_path, before)
    (tmp_path / "metrics.jsonl").write_text("")  # cut back to a checkpoint that is older than the records
    replica = FakeReplica({20: 0.2})

    async def after(recorder: Recorder) -> None:
        beside = Beside(tmp_path, replica, recorder, begins=30)
        assert beside.best == "step_10"
        await beside.end()

    records = in_run(tmp_path, after)
    assert [(r["step"], r["eval/held_out/accuracy"]) for r in records] == [(10, 0.9), (20, 0.2)]
    assert replica.measured == [20]
    assert not (tmp_path / "evaluations" / "step_40.json").exists()


def test_a_resumed_run_measures_the_version_that_was_being_measured_and_those_that_waited(tmp_path: Path) -> None:
    """As many as a killed run can leave; one more is older than them, and was left out before."""
    for version in (10, 20, 30, 40):
        (tmp_path / "checkpoints" / f"step_{version}").mkdir(parents=True)
    replica = FakeReplica({20: 0.2, 30: 0.3, 40: 0.4})

    async def body(recorder: Recorder) -> None:
        beside = Beside(tmp_path, replica, recorder, begins=40)
        await beside.end()

    records = in_run(tmp_path, body)
    assert [r["step"] for r in records] == [20, 30, 40]


def test_the_replica_makes_way_on_a_cpu_and_needs_devices_of_its_own_on_gpus() -> None:
    recipe = Recipe.model_validate(RECIPE)
    on_cpu = place(recipe, [Node("n", 8)]).evaluation
    assert on_cpu is not None
    assert on_cpu.niceness == LOWEST_PRIORITY
    on_gpus = place(recipe, [Node("n", 8, ("0", "1", "2"))]).evaluation
    assert on_gpus is not None
    assert (on_gpus.devices, on_gpus.niceness) == (("2",), 0)
    collocated = recipe.model_copy(update={"mode": "collocated"})
    assert place(collocated, [Node("n", 8, ("0", "1"))]).evaluation.devices == ("1",)  # type: ignore[union-attr]
    with pytest.raises(
        RecipeError, match=r"eval.every 10: .* makes 3 with the 2 .* there are 2 visible: use --set eval.every=0"
    ):
        place(recipe, [Node("n", 8, ("0", "1"))])
    without = recipe.model_copy(update={"eval": recipe.eval.model_copy(update={"every": 0})})
    assert place(without, [Node("n", 8, ("0", "1"))]).evaluation is None


def test_a_run_measures_exactly_the_versions_that_it_says_and_trains_no_token_of_it(
    start: Callable[..., Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reward is the length, which training changes a lot, so that every version has a score of its own."""
    settings = ("train.steps=6", "train.learning_rate=0.01", "eval.every=2", "output.keep_checkpoints=1")
    command = start(*settings, is_forked=False)
    command.read_until("step    3")
    processes = [process for _, process in command.processes()]
    assert command.end() == 0, command.output
    assert not survivors(processes)
    monkeypatch.chdir(command.directory)
    monkeypatch.setitem(sys.modules, "mine", module_from(command.directory / "mine.py"))
    recipe = load_recipe(command.run / "recipe.yaml", ["output.directory=elsewhere"])
    scores = {r["policy_version"]: r["eval/held_out/accuracy"] for r in command.metrics() if "loss" not in r}
    assert scores.keys() == {0, 2, 4, 6}
    best = max((score, version) for version, score in scores.items() if version)[1]
    link = command.run / "checkpoints" / "best"
    assert link.readlink() == Path(f"step_{best}")
    assert {path.name for path in link.parent.iterdir()} == {"best", f"step_{best}", "step_6"}
    plan = preflight(recipe)
    at_best = Start(recipe=recipe, origin=Origin(plan, command.run), model=link, display=ConsoleDisplay())
    (again,) = clock.run(lambda: measure_in_process(at_best, plan.measured, link.resolve(), best), virtual=True)
    others = [abs(score - again.mean_reward) for version, score in scores.items() if version != best]
    assert abs(scores[best] - again.mean_reward) < 0.1 * min(others)  # a last bit of a logit may change a token
    assert len(pq.read_table(command.run / "trajectories")) == 6 * 16
    assert json_of(command.run / "summary.json")["groups"] == {"trained": 24, "in flight": 0}


def module_from(file: Path) -> ModuleType:
    """Import a file, whatever module of its name another test has imported."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def json_of(file: Path) -> Any:
    return msgspec.json.decode(file.read_bytes())


def test_an_evaluator_that_cannot_start_ends_and_its_log_says_why(tmp_path: Path) -> None:
    assignment = EvaluatorAssignment(
        recipe=recipe_fields(Recipe.model_validate(RECIPE)),
        suites=(),
        tokenizer=str(tmp_path),
        context=100,
        url=f"http://{LOOPBACK}:1",
        key="key",
        certificate=None,
        versions=StartingVersions(str(tmp_path)),
        resources=Resources(1),
        host=LOOPBACK,
        logs=str(tmp_path),
    )

    async def main() -> None:
        evaluator = await EvaluatorLink.start(assignment, print)
        try:
            await evaluator.measure(0, tmp_path)
        finally:
            await evaluator.stop(10)

    with pytest.raises(ProcessDied, match=r"evaluator .* exited with code 1(?s:.*)no model can be loaded from there"):
        clock.run(main)


@pytest.mark.slow
def test_a_killed_evaluation_server_is_replaced_and_training_does_not_notice(start: Callable[..., Command]) -> None:
    gate = 32 + 16 * 4
    command = start("train.steps=8", "eval.every=2", gates=[gate])
    command.read_until("step    2")
    server = evaluation_server(command)
    server.kill()
    command.open_gate(gate)
    assert command.end() == 0, command.output
    assert re_started(command.output)
    measured = [r["policy_version"] for r in command.metrics() if "loss" not in r]
    assert {0, 6, 8} <= set(measured)
    assert len(set(measured)) == len(measured)
    assert {r["engines/restarts"] for r in command.metrics() if "loss" in r} == {0}


@pytest.mark.slow
def test_a_run_that_is_killed_while_versions_wait_measures_each_of_them_once_when_it_is_resumed(
    start: Callable[..., Command],
) -> None:
    settings = ("train.steps=7", "eval.every=2", "output.keep_checkpoints=1")
    killed = start(*settings)
    killed.read_until("step    1")
    evaluation_server(killed).suspend()
    killed.read_until("versions that are still evaluated")
    killed.process.kill()
    killed.process.wait()
    waiting = re.search(r"still evaluated: (.*)", killed.output)
    assert waiting
    resumed = start(*settings, resume=True)
    assert resumed.end() == 0, resumed.output
    measured = [r["policy_version"] for r in resumed.metrics() if "loss" not in r]
    assert sorted(measured) == [0, 2, 4, 6, 7]
    for version in waiting[1].split(", "):
        assert resumed.output.count(f"evaluation of version {version}:") == 1


def evaluation_server(command: Command) -> psutil.Process:
    """Wait for the engine server with the lowest priority."""
    while True:
        for module, process in command.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if module == "arl.engine.embedded.server" and process.nice() >= LOWEST_PRIORITY:
                    return process


def re_started(output: str) -> bool:
    return "the engine of the evaluation failed at version" in output and "is started again" in output
