"""A tracker is added from outside arl by module:attribute, and gets every step of a short training."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from arl.config.recipe_file import load_recipe
from arl.errors import RecipeError
from arl.metrics.console import ConsoleDisplay
from arl.run.train import train

MINE = "tests.extending.my_tracker"
RECIPE = f"""\
name: tracked
world: virtual
model:
  tiny: {{hidden_size: 32, layers: 1, heads: 2, intermediate_size: 64}}
data: {{task: running_checksum, options: {{size: 100}}}}
rollout: {{problems_per_step: 2, group_size: 2, staleness: 1, max_new_tokens: 16}}
train: {{steps: 2, minibatches: 1}}
engine: {{slots: 4}}
eval: {{problems: 0}}
output: {{trackers: ["{MINE}:CsvTracker", "{MINE}:BrokenTracker"]}}
"""


def run_recipe(directory: Path, *overrides: str) -> tuple[Path, str]:
    """Run the recipe; returns the run's directory and what was shown."""
    (directory / "recipe.yaml").write_text(RECIPE)
    recipe = load_recipe(directory / "recipe.yaml", [f"output.directory={directory / 'runs'}", *overrides])
    shown = io.StringIO()
    summary = train(recipe, ConsoleDisplay(Console(file=shown)))
    return Path(summary.directory), shown.getvalue()


def test_a_users_tracker_gets_every_step_and_a_broken_one_is_dropped_with_one_line(tmp_path: Path) -> None:
    run, shown = run_recipe(tmp_path)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = (run / "reward.csv").read_text().splitlines()
    assert {line for line in lines if line.startswith("step")} == {
        f"step,{record['step']},{record['reward/trained_mean']}" for record in records
    }
    assert "name,tracked,2" in lines
    assert "closed" in lines
    dropped = f"tracker {MINE}:BrokenTracker is dropped, and the run goes on without it: OSError: no space left"
    assert shown.count(dropped) == 1


def test_a_class_that_is_no_tracker_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=rf"'{MINE}:HalfTracker': lacks the method close\(\); see .*WandbTracker"):
        run_recipe(tmp_path, f"output.trackers=[{MINE}:HalfTracker]")
    assert not (tmp_path / "runs").exists()
