"""Two steps in virtual time with a tiny model, for tests that add something from outside arl."""

import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from arl.config.recipe_file import load_recipe
from arl.metrics.console import ConsoleDisplay
from arl.run.train import train
from arl.types import Problem

RECIPE = f"""\
name: short
world: virtual
model:
  tiny: {{hidden_size: 32, layers: 1, heads: 2, intermediate_size: 64}}
data: {{task: running_checksum, options: {{size: 500}}}}
reward: {{function: "{__name__}:number_of_ones"}}
rollout: {{problems_per_step: 4, group_size: 4, staleness: 1, max_new_tokens: 40}}
train: {{steps: 2, minibatches: 2}}
engine: {{slots: 8, stream_interval: 4}}
eval: {{problems: 0}}
"""


def number_of_ones(problem: Problem, response: str, truncated: bool) -> float:
    """What an untrained model can learn from: it differs within every group."""
    return response.count("1")


def always_one(problem: Problem, response: str, truncated: bool) -> float:
    """Nothing to learn from: every group has equal rewards."""
    return 1.0


def train_shortly(directory: Path, *overrides: str) -> list[dict[str, Any]]:
    """Train, and return the records of metrics.jsonl."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "recipe.yaml"
    file.write_text(RECIPE)
    recipe = load_recipe(file, [f"output.directory={directory / 'runs'}", *overrides])
    summary = train(recipe, ConsoleDisplay(Console(file=io.StringIO())))
    lines = (Path(summary.directory) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]
