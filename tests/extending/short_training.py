"""A short training in virtual time, for tests that bring one part of their own."""

import io
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console

from arl.config.recipe_file import load_recipe
from arl.metrics.console import ConsoleDisplay
from arl.metrics.summary import Summary
from arl.run.preflight import preflight
from arl.run.train import train

RECIPE = """\
name: short
world: virtual
model:
  tiny: {hidden_size: 32, layers: 1, heads: 2, intermediate_size: 32, context: 64}
data: {task: running_checksum, options: {size: 200}}
rollout: {problems_per_step: 2, group_size: 2, staleness: 1, max_new_tokens: 12}
train: {steps: 2, minibatches: 1}
engine: {slots: 8, stream_interval: 4}
eval: {problems: 0}
"""


class ShortRun:
    """Two steps of a tiny model that was not warmed up."""

    def __init__(self, directory: Path, *overrides: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "recipe.yaml").write_text(RECIPE)
        settings = [f"output.directory={directory / 'runs'}", *overrides]
        self.recipe = load_recipe(directory / "recipe.yaml", settings)

    def check(self) -> None:
        """Refuse what can be refused before a start."""
        preflight(self.recipe)

    def train(self) -> Summary:
        return train(self.recipe, ConsoleDisplay(Console(file=io.StringIO())))


def trained_rows(summary: Summary) -> list[dict[str, Any]]:
    """Return a row for each trained trajectory."""
    rows: list[dict[str, Any]] = pq.read_table(Path(summary.directory) / "trajectories").to_pylist()
    return [row for row in rows if row["fate"] == "trained"]
