"""Measure how much a checkpoint that is being written lengthens a training step: part of `arl bench controller`.

save: a copy, while training waits ─► a step, while a thread of the rank writes ─► saved
a step alone                                                                      interleaved
"""

import asyncio
import statistics
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from arl import clock
from arl.config.recipe import Recipe, TinyModel
from arl.launch.address import new_key
from arl.launch.base import Resources
from arl.launch.local import LocalLauncher
from arl.models.tiny import make_tiny_model
from arl.run.checkpoint import seal
from arl.run.failures import explain_deaths
from arl.run.ranks import open_trainer
from arl.tasks.running_checksum import CHARACTERS
from arl.train.trainer_client import TrainerClient
from arl.types import Batch, Problem, StartingVersions, Trajectory, TrajectoryGroup

SHAPE = TinyModel(hidden_size=512, layers=8, heads=8, intermediate_size=1536)  # 25M parameters, 300 MB a checkpoint
GROUPS = 4
GROUP_SIZE = 4
PROMPT = 26  # tokens
LENGTH = 128  # tokens, with the prompt


def bench_checkpoint(repeats: int) -> dict[str, Any]:
    """Return the seconds of a step with and without a checkpoint being written beside it, and their ratio.

    One rank has one thread, so that the writing has a core of its own, as it has where training is on GPUs.
    """
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as directory:
        make_tiny_model(SHAPE, CHARACTERS, 0, Path(directory) / "model")
        Path(directory, "weights").mkdir()
        return clock.run(lambda: _measure(Path(directory), repeats))


async def _measure(directory: Path, repeats: int) -> dict[str, Any]:
    model, weights = directory / "model", directory / "weights"
    recipe = Recipe.model_validate({"model": {"path": str(model)}, "data": {"task": "running_checksum"}})
    resources = Resources(threads=1)
    versions = StartingVersions(str(model))
    async with (
        LocalLauncher(directory / "logs", recipe.deadlines.shutdown) as launcher,
        explain_deaths(launcher),
        open_trainer(recipe, versions, weights, [resources], launcher, new_key(), None) as trainer,
    ):
        await trainer.ready()
        await trainer.step(batch_of(0))  # makes the optimizer's state
        rows = [await _pair(trainer, directory, 1 + 2 * i) for i in range(repeats)]
        await trainer.stop()
    copy, beside, alone, written = (statistics.median(column) for column in zip(*rows, strict=True))
    return {
        "model": "25M parameters, float32",
        "copy_seconds": round(copy, 3),
        "step_seconds": round(alone, 3),
        "step_seconds_while_writing": round(beside, 3),
        "lengthened_by": round(beside / alone - 1, 4),
        "until_sealed_seconds": round(written, 3),
        "repeats": [[round(x, 3) for x in row] for row in rows],
    }


async def _pair(trainer: TrainerClient, directory: Path, version: int) -> tuple[float, float, float, float]:
    """Return the seconds of the copy, of a step beside the writing, of a step alone, and until all is sealed."""
    partial = directory / f".step_{version}"
    start = perf_counter()
    await trainer.save(partial)
    copied = perf_counter()
    writing = asyncio.create_task(_write(trainer, partial, directory / f"step_{version}"))
    await trainer.step(batch_of(version))
    stepped = perf_counter()
    sealed = await writing
    begun = perf_counter()
    await trainer.step(batch_of(version + 1))
    return copied - start, stepped - copied, perf_counter() - begun, sealed - copied


async def _write(trainer: TrainerClient, partial: Path, final: Path) -> float:
    await trainer.saved()
    await asyncio.to_thread(seal, partial, final)
    return perf_counter()


def batch_of(version: int, groups: int = GROUPS) -> Batch:
    """Make a batch of random tokens, the same ones every time, all sampled by `version`."""
    rng = np.random.default_rng(0)
    made = [
        TrajectoryGroup(
            group_id=g,
            problem=Problem(str(g)),
            trajectories=tuple(_trajectory(rng, version) for _ in range(GROUP_SIZE)),
            dispatch_version=version,
            dispatch_time=0,
            arrival_version=0,
            arrival_time=0,
        )
        for g in range(groups)
    ]
    return Batch(version, tuple(made))


def _trajectory(rng: np.random.Generator, version: int) -> Trajectory:
    sampled = np.arange(LENGTH) >= PROMPT
    return Trajectory(
        token_ids=rng.integers(0, len(CHARACTERS), LENGTH).astype(np.int32),
        behavior_logprobs=np.where(sampled, -2.5, 0.0).astype(np.float32),
        policy_versions=np.where(sampled, version, -1).astype(np.int32),
        loss_mask=sampled,
        prompt_length=PROMPT,
        reward=float(rng.random()),
        truncated=False,
    )
