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
from msgspec import Struct
from msgspec.structs import astuple

from arl import clock
from arl.config.recipe import Recipe, TinyModel
from arl.launch.address import new_key
from arl.launch.base import Resources
from arl.launch.local import LocalLauncher
from arl.launch.trust import RunTrust
from arl.models.tiny import make_tiny_model
from arl.run.checkpoint import commit_checkpoint
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


class Pair(Struct, frozen=True):
    """Hold the seconds of one checkpoint with a step beside its writing, and of a step alone."""

    copy: float
    step_while_writing: float
    step_alone: float
    until_sealed: float  # from the end of the copy


def bench_checkpoint(repeats: int) -> dict[str, Any]:
    """Return the seconds of a step with and without a checkpoint being written beside it, and their ratio.

    One rank has one thread, so that the writing has a core of its own, as it has where training is on GPUs.
    """
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as directory:
        make_tiny_model(SHAPE, CHARACTERS, 0, Path(directory) / "model")
        Path(directory, "weights").mkdir()
        return clock.run(lambda: _measure(Path(directory), repeats))


async def _measure(directory: Path, repeats: int) -> dict[str, Any]:
    model = directory / "model"
    weights = directory / "weights"
    recipe = Recipe.model_validate(
        {
            "model": {"path": str(model)},
            "data": {"task": "running_checksum"},
            "train": {"dtype": "float32"},
        }
    )
    resources = Resources(threads=1)
    versions = StartingVersions(str(model))
    async with (
        LocalLauncher(directory / "logs", recipe.deadlines.shutdown) as launcher,
        explain_deaths(launcher),
        open_trainer(recipe, versions, weights, [resources], launcher, RunTrust(new_key()), None) as trainer,
    ):
        await trainer.ready()
        await trainer.step(batch_of(0))  # makes the optimizer's state
        pairs = [await _pair(trainer, directory, 1 + 2 * i) for i in range(repeats)]
        await trainer.stop()
    step_while_writing = statistics.median(pair.step_while_writing for pair in pairs)
    step_alone = statistics.median(pair.step_alone for pair in pairs)
    return {
        "model": "25M parameters, float32",
        "copy_seconds": round(statistics.median(pair.copy for pair in pairs), 3),
        "step_seconds": round(step_alone, 3),
        "step_seconds_while_writing": round(step_while_writing, 3),
        "lengthened_by": round(step_while_writing / step_alone - 1, 4),
        "until_sealed_seconds": round(statistics.median(pair.until_sealed for pair in pairs), 3),
        "repeats": [[round(seconds, 3) for seconds in astuple(pair)] for pair in pairs],
    }


async def _pair(trainer: TrainerClient, directory: Path, version: int) -> Pair:
    """Copy a checkpoint, take one step while it is written, and one when it is sealed."""
    partial = directory / f".step_{version}"
    final = directory / f"step_{version}"
    start = perf_counter()
    await trainer.save(partial)
    copied = perf_counter()
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(_write(trainer, partial, final))
        await trainer.step(batch_of(version))
        stepped = perf_counter()
    begun = perf_counter()
    await trainer.step(batch_of(version + 1))
    ended = perf_counter()
    return Pair(
        copy=copied - start,
        step_while_writing=stepped - copied,
        step_alone=ended - begun,
        until_sealed=writing.result() - copied,
    )


async def _write(trainer: TrainerClient, partial: Path, final: Path) -> float:
    """Wait until the rank has written its part, commit the checkpoint, and return the time."""
    await trainer.saved()
    await asyncio.to_thread(commit_checkpoint, partial, final)
    return perf_counter()


def batch_of(version: int, groups: int = GROUPS) -> Batch:
    """Make a batch of random tokens, the same ones every time, all sampled by `version`."""
    rng = np.random.default_rng(0)
    made = []
    for group_id in range(groups):
        group = TrajectoryGroup(
            group_id=group_id,
            problem=Problem(str(group_id)),
            trajectories=tuple(_trajectory(rng, version) for _ in range(GROUP_SIZE)),
            dispatch_version=version,
            dispatch_time=0,
            arrival_version=0,
            arrival_time=0,
        )
        made.append(group)
    return Batch(version, tuple(made))


def _trajectory(rng: np.random.Generator, version: int) -> Trajectory:
    sampled = np.arange(LENGTH) >= PROMPT
    reward = float(rng.random())
    return Trajectory(
        token_ids=rng.integers(0, len(CHARACTERS), LENGTH).astype(np.int32),
        behavior_logprobs=np.where(sampled, -2.5, 0.0).astype(np.float32),
        policy_versions=np.where(sampled, version, -1).astype(np.int32),
        loss_mask=sampled,
        prompt_length=PROMPT,
        reward=reward,
        unshaped_reward=reward,
        truncated=False,
    )
