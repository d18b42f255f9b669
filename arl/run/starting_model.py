"""The model a run starts from: the recipe's own, or a tiny one, made and warmed up once and cached by content.

tiny shape + task + warm-up section + seed ─► hash ─► cached? ─► its directory
                                                └ no ─► arl.train.sft, in its own process ─► cache
"""

import asyncio
import contextlib
import fcntl
import hashlib
import importlib
import inspect
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TextIO

import msgspec
from msgspec import Struct

from arl.clock import deadline
from arl.config.recipe import Recipe, Warmup
from arl.data.model_limits import Limits, model_limits
from arl.data.tokenizer import HuggingFaceCodec, load_codec
from arl.launch.base import Command, Launcher, Resources
from arl.launch.devices import visible_cores
from arl.metrics.console import ConsoleDisplay
from arl.models.characters import character_tokenizer
from arl.models.model_files import local_copy
from arl.tasks.registry import task_module, task_named

WARMUP_SECONDS = 1800.0  # for the whole warm-up


class _Progress(Struct, frozen=True):
    """One line of the warm-up's output."""

    stage: str
    step: int
    accuracy: float
    seconds: float


def cache_directory() -> Path:
    """ARL_CACHE, or the user's cache directory."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "arl"
    return Path(os.environ.get("ARL_CACHE", default))


def starting_codec(recipe: Recipe) -> HuggingFaceCodec:
    """The tokenizer of version 0, known before its weights are."""
    if recipe.model.path is not None:
        return load_codec(recipe.model.path)
    assert recipe.data.task is not None, "refused by the recipe"
    return HuggingFaceCodec(character_tokenizer(task_named(recipe.data.task).CHARACTERS))


def starting_limits(recipe: Recipe) -> Limits:
    """Of version 0.

    Raises:
        DataError: no model there.
    """
    if recipe.model.tiny is not None:
        return Limits(starting_codec(recipe).vocab_size, recipe.model.tiny.context)
    assert recipe.model.path is not None
    return model_limits(recipe.model.path)


async def starting_model(recipe: Recipe, directory: Path, launcher: Launcher, display: ConsoleDisplay) -> Path:
    """Directory of the weights that become version 0.

    Raises:
        ProcessDied: the warm-up did not reach its target.
    """
    if recipe.model.path is not None:
        return local_copy(recipe.model.path)
    assert recipe.model.tiny is not None
    assert recipe.data.task is not None
    if recipe.warmup is None:
        from arl.models.tiny import make_tiny_model

        make_tiny_model(recipe.model.tiny, task_named(recipe.data.task).CHARACTERS, recipe.seed, directory / "model")
        return directory / "model"
    job = _job(recipe)
    cached = cache_directory() / "warmup" / _digest(job)
    async with _alone_with(cached):
        if cached.exists():
            display.note(f"warm-up: cached in {cached}")
        else:
            await _warm_up(recipe.warmup, job | {"output": str(cached)}, directory, launcher, display)
    return cached


@contextlib.asynccontextmanager
async def _alone_with(cached: Path) -> AsyncIterator[None]:
    """Of several runs that need the same warm-up, one makes it; the others wait for it, and look every second."""
    cached.parent.mkdir(parents=True, exist_ok=True)
    with cached.with_suffix(".lock").open("w") as lock:
        async with deadline(WARMUP_SECONDS, "run", f"another run's warm-up of {cached}"):
            while not _try_lock(lock):  # noqa: ASYNC110 - the lock of another process has no event
                await asyncio.sleep(1.0)
        yield


def _try_lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _warm_up(
    warmup: Warmup, job: dict[str, Any], directory: Path, launcher: Launcher, display: ConsoleDisplay
) -> None:
    file = directory / "warmup.json"
    file.write_text(json.dumps(job))
    display.begin("warm-up", warmup.max_steps + warmup.noise_steps)

    def show(line: str) -> None:
        if line.startswith("{") and "accuracy" in line:
            p = msgspec.json.decode(line, type=_Progress)
            taught = p.step if p.stage == "a" else warmup.max_steps + p.step
            what = "learning the task" if p.stage == "a" else "with bad habits"
            display.advance(taught, f"warm-up {p.step:4d}  {what}: accuracy {p.accuracy:.3f}  {p.seconds:.0f} s")

    command = Command((sys.executable, "-m", "arl.train.sft", str(file)))
    resources = Resources(job["threads"], launcher.nodes[0].devices)
    process = await launcher.start("warmup", command, resources, show)
    await process.finished(WARMUP_SECONDS)


def _job(recipe: Recipe) -> dict[str, Any]:
    assert recipe.model.tiny is not None
    assert recipe.warmup is not None
    return {
        "kind": "warmup",
        "model": recipe.model.tiny.model_dump(),
        "task": recipe.data.task,
        "warmup": recipe.warmup.model_dump(),
        "seed": recipe.seed,
        "max_new_tokens": recipe.rollout.max_new_tokens,
        "eval_fraction": recipe.data.eval_fraction,
        "threads": visible_cores(),
    }


def _digest(job: dict[str, Any]) -> str:
    """Of everything that decides the weights: the job and the code of the task."""
    task = inspect.getsource(importlib.import_module(task_module(job["task"])))
    return hashlib.sha256(f"{json.dumps(job, sort_keys=True)}\n{task}".encode()).hexdigest()[:16]
