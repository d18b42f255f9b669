"""Weights & Biases as a mirror of metrics.jsonl; another tracker is another class with these two methods."""

import hashlib
import os
from pathlib import Path
from typing import Any, Protocol

from arl.config.recipe import Recipe
from arl.errors import InputError
from arl.metrics.names import Record, number


class Tracker(Protocol):
    def log(self, record: Record) -> None: ...

    def close(self) -> None: ...


class WandbTracker:
    def __init__(self, recipe: Recipe, directory: Path) -> None:
        import wandb

        assert recipe.output.wandb != "off"

        self._histogram: Any = wandb.Histogram
        self._run: Any = wandb.init(
            project=recipe.output.wandb_project,
            name=recipe.name,
            id=hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:16],  # a resumed run is the same run
            resume="allow",
            config=recipe.model_dump(mode="json"),
            dir=directory,
            mode=recipe.output.wandb,
            settings=wandb.Settings(silent=True),
        )

    def log(self, record: Record) -> None:
        shown = {
            name: self._histogram(np_histogram=(value, list(range(len(value) + 1))))
            if isinstance(value, list)
            else value
            for name, value in record.items()
        }
        self._run.log(shown, step=int(number(record, "step")))

    def close(self) -> None:
        self._run.finish()


def check_tracking(recipe: Recipe) -> None:
    """Raises InputError: online tracking without an API key."""
    netrc = Path.home() / ".netrc"
    if recipe.output.wandb == "online" and "WANDB_API_KEY" not in os.environ and not netrc.exists():
        raise InputError("output.wandb online: no API key; run `wandb login`, set WANDB_API_KEY, or use offline")


def make_trackers(recipe: Recipe, directory: Path) -> list[Tracker]:
    return [] if recipe.output.wandb == "off" else [WandbTracker(recipe, directory)]
