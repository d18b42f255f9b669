"""A rank that dies while it writes leaves the older checkpoint, which any number of ranks resumes."""

import asyncio
import os
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from arl.config.recipe import Recipe
from arl.errors import ProcessDied
from arl.rollout.controller_state import ControllerState
from arl.run.checkpoint import clear_after, newest_intact
from arl.train.trainer_client import TrainerClient
from tests.run.test_checkpoint import checkpoints_of
from tests.train.synthetic import batch
from tests.train.workers import forked, init, launched

SECONDS = 120.0


async def ends_with(work: Coroutine[Any, Any, None], kind: type[Exception]) -> str:
    """Return the message with which `work` fails."""
    with pytest.raises(kind) as caught:
        await work
    return str(caught.value)


async def written_into(pipe: Path) -> None:
    """Wait until somebody has written into `pipe`."""
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    written = asyncio.Event()
    asyncio.get_running_loop().add_reader(reader, written.set)
    try:
        async with asyncio.timeout(SECONDS):
            await written.wait()
    finally:
        asyncio.get_running_loop().remove_reader(reader)
        os.close(reader)


@pytest.mark.slow
def test_a_rank_killed_while_it_writes_leaves_the_older_checkpoint_to_resume_from(tiny: Path, tmp_path: Path) -> None:
    """Two files of rank 0 are pipes: the first says that it writes, and the second, which nobody reads, holds it."""
    directory = tmp_path / "run" / "checkpoints"
    directory.mkdir(parents=True)
    recipe = Recipe.model_validate({"model": {"path": str(tiny)}, "data": {"task": "running_checksum"}})

    async def step_and_save(trainer: TrainerClient, version: int) -> None:
        await trainer.step(batch(version, groups=4, size=4))
        checkpoints = checkpoints_of(directory, recipe, trainer)
        await checkpoints.copy(version + 1)
        done = (version + 1) * recipe.rollout.problems_per_step
        state = ControllerState(version=version + 1, loaded_version=version + 1, admitted=done, trained=done)
        await checkpoints.write(state)

    async def killed() -> None:
        async with launched(init(tiny, tmp_path / "published"), 2) as (trainer, ranks):
            await step_and_save(trainer, 4)
            partial = directory / ".step_6.partial"
            partial.mkdir()
            for name in ("config.json", "generation_config.json"):
                os.mkfifo(partial / name)
            async with asyncio.TaskGroup() as tasks:
                saving = tasks.create_task(ends_with(step_and_save(trainer, 5), ProcessDied))
                await written_into(partial / "config.json")
                os.kill(ranks[0].pid, signal.SIGKILL)
            assert "was killed by SIGKILL" in saving.result()

    async def resumed(checkpoint: Path) -> None:
        again = msgspec.structs.replace(init(checkpoint, tmp_path / "again"), version=5, resumed=True)
        async with forked(again, 1) as (trainer, _):
            await step_and_save(trainer, 5)
            await trainer.stop()

    asyncio.run(killed())
    notes: list[str] = []
    checkpoint, state = newest_intact(directory, notes.append)
    assert checkpoint.name == "step_5"
    assert state.controller.version == 5
    assert not notes
    clear_after(checkpoint)
    asyncio.run(resumed(checkpoint))
    assert sorted(path.name for path in directory.iterdir()) == ["step_5", "step_6"]
