"""Versions are evaluated beside a run: each once, in order, on its own weights, and never at the cost of the run."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from arl import clock
from arl.config.recipe import Recipe
from arl.errors import EngineLost, GradingError, RecipeError, RewardError
from arl.launch.base import Node
from arl.launch.placement import LOWEST_PRIORITY, place
from arl.metrics.recorder import Recorder
from arl.run.evaluation.during import NotMeasured
from arl.run.evaluation.evaluator_messages import MeasureOutcome
from arl.run.evaluation.scoreboard import Scores
from arl.types import Accuracy
from tests.run.beside import RECIPE, Beside, FakeReplica, in_run


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


@pytest.mark.parametrize("error", [RewardError("no number"), GradingError("none"), ValueError("of an env")])
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
    with pytest.raises(RecipeError, match=r"makes 2, and evaluation during training 1 GPU more .* there are 2 visible"):
        place(recipe, [Node("n", 8, ("0", "1"))])
    without = recipe.model_copy(update={"eval": recipe.eval.model_copy(update={"every": 0})})
    assert place(without, [Node("n", 8, ("0", "1"))]).evaluation is None
