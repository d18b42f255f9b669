"""A checkpoint that cannot be written is a failure of the run, told in time."""

import asyncio
from pathlib import Path

import pytest

from arl import clock
from arl.checkpoint import RunCheckpoints, RunState
from arl.errors import DeadlineError
from arl.metrics.state import RecorderState
from arl.recipe import Recipe
from arl.rollout.state import ControllerState
from tests.fakes import NullEngine, NullTrainer

RECIPE = Recipe.model_validate(
    {"model": {"path": "m"}, "data": {"task": "running_checksum"}, "deadlines": {"step": 0.2}, "train": {"steps": 9}}
)
STATE = ControllerState(2, 2, 0, 0, {}, {}, 0, 0, 0, (), (), ())


def cut(state: ControllerState) -> RunState:
    return RunState({}, "", 0.0, None, state, RecorderState(0.0, 0.0))


class SlowTrainer(NullTrainer):
    async def saved(self) -> None:
        await asyncio.get_running_loop().create_future()


def written_by(trainer: NullTrainer, directory: Path) -> None:
    async def main() -> None:
        checkpoints = RunCheckpoints(directory, RECIPE, NullEngine(lambda _: 1, version=2), trainer, cut)
        await checkpoints.copy(2)
        await checkpoints.write(STATE)

    clock.run(main)


def test_a_write_that_fails_in_its_thread_is_raised_and_leaves_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / ".step_2.partial").write_text("in the way")
    with pytest.raises(NotADirectoryError):
        written_by(NullTrainer(), tmp_path)
    assert not (tmp_path / "step_2").exists()


def test_a_trainer_that_never_finishes_writing_is_told_at_the_deadline(tmp_path: Path) -> None:
    with pytest.raises(DeadlineError, match="writing the checkpoint of version 2"):
        written_by(SlowTrainer(), tmp_path)
