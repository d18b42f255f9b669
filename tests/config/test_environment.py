"""Environment variables of one side: which a recipe may give, and which are refused with the reason."""

from pathlib import Path

import pytest

from arl.config.recipe_file import load_recipe
from arl.errors import RecipeError

RECIPE = "model: {path: m}\ndata: {task: running_checksum}\n"


@pytest.mark.parametrize("side", ["engine", "train", "reward"])
def test_each_side_takes_variables_and_numbers_become_text(side: str, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(RECIPE)
    recipe = load_recipe(tmp_path / "r.yaml", [f"{side}.environment={{NCCL_DEBUG: INFO, MALLOC_ARENA_MAX: 2}}"])
    sides = {name: getattr(recipe, name).environment for name in ("engine", "train", "reward")}
    assert sides.pop(side) == {"NCCL_DEBUG": "INFO", "MALLOC_ARENA_MAX": "2"}
    assert list(sides.values()) == [{}, {}]


@pytest.mark.parametrize("side", ["engine", "train", "reward"])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("CUDA_VISIBLE_DEVICES", r"arl sets it \(the placement of the run"),
        ("ARL_RUN_KEY", "names with ARL_ are arl's own"),
        ("HF_TOKEN", "by its name it is a secret"),
    ],
)
def test_a_variable_that_arl_sets_or_that_is_secret_is_refused_without_its_value(
    side: str, name: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "r.yaml").write_text(f"{RECIPE}{side}:\n  environment: {{{name}: hush}}\n")
    with pytest.raises(RecipeError, match=rf"r\.yaml:\d+.*{side}\.environment {name}: {reason}") as caught:
        load_recipe(tmp_path / "r.yaml")
    assert "hush" not in str(caught.value)
