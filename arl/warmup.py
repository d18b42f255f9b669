"""The model a run starts from: the recipe's own, or a tiny one, made and warmed up once and cached by content.

tiny shape + task + warm-up section + seed ─► hash ─► cached? ─► its directory
                                                └ no ─► arl.train.sft, in its own process ─► cache
"""

import os
from pathlib import Path

from msgspec import Struct

from arl.errors import RunError
from arl.launch.local import LocalProcesses
from arl.metrics.console import ConsoleDisplay
from arl.recipe import Recipe

WARMUP_SECONDS = 1800.0  # for the whole warm-up


class WarmupProgress(Struct, frozen=True):
    """One line of the warm-up's output."""

    step: int
    loss: float
    accuracy: float | None = None


def cache_directory() -> Path:
    """ARL_CACHE, or the user's cache directory."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "arl"
    return Path(os.environ.get("ARL_CACHE", default))


def starting_codec(recipe: Recipe) -> HuggingFaceCodec:
    """The tokenizer of version 0, known before its weights are."""
    if recipe.model.path is not None:
        return load_codec(recipe.model.path)
    assert recipe.data.task is not None, "refused by the recipe"
    from arl.models.tiny import character_tokenizer

    return HuggingFaceCodec(character_tokenizer(task_named(recipe.data.task).CHARACTERS))


def context_length(recipe: Recipe) -> int:
    """Longest sequence of version 0, tokens."""
    if recipe.model.tiny is not None:
        return recipe.model.tiny.context
    from transformers import AutoConfig

    return int(AutoConfig.from_pretrained(recipe.model.path).max_position_embeddings)


async def starting_model(recipe: Recipe, directory: Path, processes: LocalProcesses, display: ConsoleDisplay) -> Path:
    """Directory of the weights that become version 0.

    Raises:
        RunError: the warm-up did not reach its target.
    """
    if recipe.model.path is not None:
        return Path(recipe.model.path)
    raise RunError("completed once train/sft.py is in")
