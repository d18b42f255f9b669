"""A checkpoint that cannot be written is a failure of the run, told in time."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from arl import clock
from arl.config.recipe import Recipe
from arl.errors import DeadlineError, DiskError
from arl.metrics.recorder import Recorder, RecorderState
from arl.rollout.controller_state import ControllerState
from arl.run.checkpoint import RunCheckpoints, next_checkpoint
from arl.train.base import Trainer
from tests.fakes import NullEngine, NullTrainer

RECIPE = {"model": {"path": "m"}, "data": {"task": "running_checksum"}, "train": {"steps": 9}}
DONE = 2 * Recipe.model_validate(RECIPE).rollout.problems_per_step
STATE = ControllerState(version=2, loaded_version=2, admitted=DONE, trained=DONE)


class NullRecorder:
    """Record nothing."""

    def snapshot(self) -> RecorderState:
        return RecorderState(start=0.0, last_step=0.0)

    def settle(self) -> None:
        pass


def checkpoints_of(directory: Path, recipe: Recipe, trainer: Trainer, **options: Any) -> RunCheckpoints:
    """Return checkpoints of a run that records nothing, whose engine serves version 2."""
    recorder = cast(Recorder, NullRecorder())
    engine = NullEngine(lambda _: 1, version=2)
    return RunCheckpoints(
        directory=directory, recipe=recipe, engine=engine, trainer=trainer, recorder=recorder, **options
    )


class SlowTrainer(NullTrainer):
    async def saved(self) -> None:
        await asyncio.get_running_loop().create_future()


def written_by(trainer: NullTrainer, directory: Path, seconds: float) -> None:
    recipe = Recipe.model_validate(RECIPE | {"deadlines": {"step": seconds}})

    async def main() -> None:
        checkpoints = checkpoints_of(directory, recipe, trainer)
        await checkpoints.copy(2)
        await checkpoints.write(STATE)

    clock.run(main)


def test_a_write_that_fails_in_its_thread_is_raised_and_leaves_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / ".step_2.partial").write_text("in the way")
    with pytest.raises(DiskError, match=r"step_2.partial.*Not a directory"):
        written_by(NullTrainer(), tmp_path, seconds=60.0)
    assert not (tmp_path / "step_2").exists()


def test_a_trainer_that_never_finishes_writing_is_told_at_the_deadline(tmp_path: Path) -> None:
    with pytest.raises(DeadlineError, match="writing the checkpoint of version 2"):
        written_by(SlowTrainer(), tmp_path, seconds=0.2)


@pytest.mark.parametrize(
    ("settings", "saved"),
    [
        ({}, [20, 40, 50]),
        ({"world": "virtual"}, [50]),
        ({"world": "virtual", "output": {"checkpoint_every": 25}}, [25, 50]),
        ({"output": {"checkpoint_every": 0}}, [50]),
    ],
)
def test_checkpoints_come_at_a_sensible_interval_unless_the_recipe_says_another(
    settings: dict[str, object], saved: list[int]
) -> None:
    recipe = Recipe.model_validate(RECIPE | {"train": {"steps": 50}} | settings)
    assert sorted({next_checkpoint(recipe, version) for version in range(50)}) == saved


def test_the_checkpoint_that_a_run_was_resumed_from_is_kept(tmp_path: Path) -> None:
    recipe = Recipe.model_validate(RECIPE | {"output": {"keep_checkpoints": 1}})
    for version in (2, 4, 6):
        (tmp_path / f"step_{version}").mkdir()
    checkpoints_of(tmp_path, recipe, NullTrainer(), in_use=tmp_path / "step_2")._remove_old()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_2", "step_6"]
