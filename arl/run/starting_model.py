"""Find or make the model that a run starts from: the recipe's own, or a tiny one, warmed up once and cached by content.

tiny shape + task, options, seed + demonstrations + code of the warm-up ─► hash ─► cached? ─► its directory
                                                               └ no ─► arl.train.warmup, in its own process ─► cache
several nodes: what lies in a cache of the controller's node ─► the run directory, which all nodes see
"""

import asyncio
import hashlib
import inspect
import json
import os
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

import arl
from arl.clock import deadline
from arl.config.recipe import Recipe
from arl.data.model_limits import Limits, model_limits
from arl.data.tokenizer import HuggingFaceCodec, load_codec
from arl.errors import RecipeError
from arl.files import remove_any, require_lock, sync_to_disk, try_lock, writing
from arl.launch.base import Command, Launcher, Resources
from arl.launch.devices import visible_cores
from arl.metrics.console import ConsoleDisplay
from arl.models.model_files import local_copy
from arl.models.tiny import character_tokenizer, make_tiny_model
from arl.tasks.base import Task, WarmupStage
from arl.tasks.registry import open_task, task_class

WARMUP_SECONDS = 1800.0  # for the whole warm-up
DRAWN = 1024  # demonstrations of a stage, and questions, in the name of a cached warm-up
CODE = ("train/warmup.py", "train/sft.py", "train/optimizer.py", "models/tiny.py")  # that decides about its weights


def starting_codecs(recipe: Recipe) -> dict[str, HuggingFaceCodec]:
    """Load or make the tokenizer of version 0, which is known before its weights are, for the prompts of each source.

    Raises:
        DataError: no tokenizer at model.path.
        RecipeError: model.tiny, and a task without a vocabulary of characters, or a suffix.
    """
    if recipe.model.path is not None:
        codec = load_codec(recipe.model.path, recipe.data)
    elif recipe.data.suffix:
        raise RecipeError(
            f"data.suffix {recipe.data.suffix!r}: a model.tiny is taught its task's prompts as they are; leave it out"
        )
    else:
        task = tiny_task(recipe)
        codec = HuggingFaceCodec(character_tokenizer(str(task.characters), task.marks, task.chat_template), recipe.data)
    return {name: codec.with_format(source.data) for name, source in recipe.sources.items()}


def starting_limits(recipe: Recipe, codec: HuggingFaceCodec) -> Limits:
    """Return the limits of version 0."""
    tiny = recipe.model.tiny
    return model_limits(str(recipe.model.path)) if tiny is None else Limits(codec.vocab_size, tiny.context)


def tiny_task(recipe: Recipe) -> type[Task]:
    """Return the task whose vocabulary a tiny model has: that of the first source.

    Raises:
        RecipeError: the task has none.
    """
    assert recipe.data.task is not None, "refused by the recipe"
    task = task_class(recipe.data.task)
    if not task.characters:
        raise RecipeError(
            f"model.tiny: task {recipe.data.task} declares no `characters` for its vocabulary; give model.path instead"
        )
    return task


def warmup_stages(recipe: Recipe) -> Sequence[WarmupStage]:
    """Return the stages of the recipe's warm-up; none where it has no warm-up.

    Raises:
        RecipeError: a warm-up, and a task that declares no stages.
    """
    if not recipe.warmup:
        return ()
    stages = open_task(recipe.data).warmup()
    if not stages:
        raise RecipeError(
            f"warmup: task {recipe.data.task} declares no stages of a warm-up; leave it out, and let model.path name a "
            "model that can answer already"
        )
    return stages


async def starting_model(recipe: Recipe, directory: Path, launcher: Launcher, display: ConsoleDisplay) -> Path:
    """Return the directory of the weights that become version 0, after making them if need be.

    With several nodes it is one that all of them see, if model.path does not name a directory: that one is the user's
    to share.

    Raises:
        ProcessDied: the warm-up did not reach its target.
    """
    path = recipe.model.path
    if path is not None:
        found = local_copy(path)
    elif recipe.warmup:
        found = await _warmed_up(recipe, directory, launcher, display)
    else:
        assert recipe.model.tiny is not None
        found = directory / "model"
        with writing(found):
            task = tiny_task(recipe)
            make_tiny_model(recipe.model.tiny, str(task.characters), recipe.seed, found, task.marks, task.chat_template)
    is_shared = len(launcher.nodes) == 1 or (path is not None and os.path.isdir(path))  # noqa: ASYNC240 - local
    return found if is_shared else share_with_nodes(found, directory, display)


def share_with_nodes(model: Path, directory: Path, display: ConsoleDisplay) -> Path:
    """Copy `model`, which lies in a cache of this node, into the run directory, which all nodes see."""
    shared = directory / "model"
    if model != shared:
        partial = directory / ".model"
        with writing(shared):
            remove_any(partial)  # of a run that was killed
            shutil.copytree(model, partial)
            partial.rename(shared)
        display.note(f"model: copied from {model} to {shared}, which all nodes see")
    return shared


def warmup_job(recipe: Recipe) -> tuple[dict[str, Any], Path]:
    """Return what the warm-up is made of, and the directory in the cache where it is, or will be."""
    assert recipe.model.tiny is not None
    job = {  # the fields of arl.train.warmup.WarmupJob
        "model": recipe.model.tiny.model_dump(),
        "task": recipe.data.task,
        "options": recipe.data.options,
        "seed": recipe.seed,
        "max_new_tokens": recipe.rollout.max_new_tokens,
        "threads": visible_cores(),
    }
    return job, warmup_cache() / _warmup_sha256(recipe, job)[:16]


def warmup_cache() -> Path:
    """Return the directory of warmed-up models."""
    return Path(os.environ.get("ARL_CACHE", Path.home() / ".cache" / "arl")) / "warmup"


def _warmup_sha256(recipe: Recipe, job: dict[str, Any]) -> str:
    """Hash what a warm-up's weights depend on: its job, vocabulary, stages, first demonstrations, and code.

    The demonstrations show a change of the files that the task reads, and of modules that it imports.
    """
    task = tiny_task(recipe)
    vocabulary = (task.characters, task.marks, task.chat_template)
    source = inspect.getsource(sys.modules[task.__module__])
    code = [(Path(arl.__file__).parent / name).read_text() for name in CODE]
    decisive: list[Any] = [json.dumps(job, sort_keys=True), vocabulary, source, code]
    rng = random.Random(recipe.seed)
    for stage in warmup_stages(recipe):
        decisive += [stage.name, stage.steps, stage.learning_rate, stage.schedule, stage.target_accuracy]
        decisive += [stage.demonstrate(rng, DRAWN), stage.ask(rng, DRAWN)]
    return hashlib.sha256(msgspec.msgpack.encode(decisive)).hexdigest()


async def _warmed_up(recipe: Recipe, directory: Path, launcher: Launcher, display: ConsoleDisplay) -> Path:
    """Return the warmed-up model from the cache; of several runs that need it, one makes it, in its own process."""
    job, cached = warmup_job(recipe)
    made = cached.with_name(f".{cached.name}.made")
    file = directory / "warmup.json"
    with writing(cached):
        cached.parent.mkdir(parents=True, exist_ok=True)
    with require_lock(cached.with_suffix(".lock")) as lock:
        async with deadline(WARMUP_SECONDS, "run", f"another run's warm-up of {cached}"):
            while not try_lock(lock):  # noqa: ASYNC110 - no event tells of another process
                await asyncio.sleep(1.0)
        if os.path.exists(cached):  # noqa: ASYNC240 - a local directory
            display.note(f"warm-up: cached in {cached}")
            return cached
        with writing(file):
            remove_any(made)  # of a run that was killed
            file.write_text(json.dumps(job | {"output": str(made)}))
        command = Command((sys.executable, "-m", "arl.train.warmup", str(file)))
        resources = Resources(visible_cores(), launcher.nodes[0].devices)
        process = await launcher.start("warmup", command, resources, lambda line: display.note(f"warm-up: {line}"))
        await process.finished(WARMUP_SECONDS)
        with writing(cached):
            for path in made.iterdir():
                sync_to_disk(path)  # so that a crash of the machine leaves no part of a model under its name
            made.rename(cached)
    return cached
