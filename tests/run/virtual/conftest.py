"""Run small recipes in virtual time."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from rich.console import Console

from arl.config.recipe_file import load_recipe
from arl.metrics.console import ConsoleDisplay
from arl.run.train import train
from tests.run.virtual.test_virtual import RECIPE, Ran, Start


@pytest.fixture(autouse=True, scope="module")
def _alone() -> Iterator[None]:
    """Process groups are global."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Return what runs RECIPE with other settings, below tmp_path/runs."""

    def begin(*overrides: str) -> Ran:
        (tmp_path / "recipe.yaml").write_text(RECIPE)
        recipe = load_recipe(tmp_path / "recipe.yaml", [f"output.directory={tmp_path / 'runs'}", *overrides])
        return Ran(Path(train(recipe, ConsoleDisplay(Console(file=io.StringIO()))).directory))

    return begin
