"""Two steps in virtual time with a tiny model that was not warmed up, for tests that bring one part of their own."""

import io
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console

from arl.config.recipe import Recipe
from arl.config.recipe_file import load_recipe
from arl.metrics.console import ConsoleDisplay
from arl.metrics.summary import Summary
from arl.run.preflight import preflight
from arl.run.train import train

RECIPE = """\
name: short
world: virtual
model:
  tiny: {hidden_size: 32, layers: 1, heads: 2, intermediate_size: 64, context: 128}
data: {task: running_checksum, options: {size: 200}}
rollout: {problems_per_step: 2, group_size: 4, staleness: 1, max_new_tokens: 16}
train: {steps: 2, minibatches: 2, learning_rate: 1.5e-4}
engine: {slots: 8, stream_interval: 4}
eval: {problems: 0}
"""
TRAJECTORIES = 2 * 2 * 4  # of the whole run
FIRST_SECTION = len(RECIPE.splitlines()) + 1  # the line of what a test adds


class ShortRun:
    """One recipe in one directory, and what its run leaves there."""

    def __init__(self, directory: Path, *overrides: str, sections: str = "") -> None:
        """Write RECIPE and further `sections` to recipe.yaml, and read it with `overrides`."""
        self.file = directory / "recipe.yaml"
        self.directory = directory / "runs"
        self.output = io.StringIO()
        directory.mkdir(parents=True, exist_ok=True)
        self.file.write_text(f"{RECIPE}{sections}\n")
        self.recipe: Recipe = load_recipe(self.file, [f"output.directory={self.directory}", *overrides])

    def check(self) -> None:
        """Refuse what can be refused before a start."""
        preflight(self.recipe)

    def train(self) -> Summary:
        """Run the recipe; what it shows is kept in `output`."""
        return train(self.recipe, ConsoleDisplay(Console(file=self.output)))


def step_records(summary: Summary) -> list[dict[str, Any]]:
    """Return the records of metrics.jsonl."""
    lines = Path(summary.directory, "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def trained_rows(summary: Summary) -> list[dict[str, Any]]:
    """Return a row for each trained trajectory."""
    rows: list[dict[str, Any]] = pq.read_table(Path(summary.directory) / "trajectories").to_pylist()
    return [row for row in rows if row["fate"] == "trained"]
