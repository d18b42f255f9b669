"""Environment variables of one side: which a recipe may give, and which are refused with the reason."""

from pathlib import Path

import pytest

from arl.config.recipe_file import load_recipe
from arl.errors import RecipeError

RECIPE = "model: {path: m}\ndata: {task: running_checksum}\n"


def test_variables_that_are_numbers_become_text(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(RECIPE)
    recipe = load_recipe(tmp_path / "r.yaml", ["train.environment={NCCL_DEBUG: INFO, MALLOC_ARENA_MAX: 2}"])
    assert recipe.train.environment == {"NCCL_DEBUG": "INFO", "MALLOC_ARENA_MAX": "2"}
    assert recipe.engine.environment == {}


def test_reward_workers_get_what_arl_sets_for_engines_and_ranks_alone(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(RECIPE)
    given = "reward.environment={CUDA_VISIBLE_DEVICES: 7, OMP_NUM_THREADS: 4}"
    assert load_recipe(tmp_path / "r.yaml", [given]).reward.cores == 4


@pytest.mark.parametrize(
    ("side", "name", "reason"),
    [
        ("engine", "CUDA_VISIBLE_DEVICES", r"arl sets it \(the placement of the run"),
        ("train", "ARL_RUN_KEY", "names with ARL_ are arl's own"),
        ("reward", "HF_TOKEN", "by its name it is a secret"),
    ],
)
def test_a_variable_that_arl_sets_or_that_is_secret_is_refused_without_its_value(
    side: str, name: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "r.yaml").write_text(f"{RECIPE}{side}:\n  environment: {{{name}: hush}}\n")
    with pytest.raises(RecipeError, match=rf"r\.yaml:\d+.*{side}\.environment {name}: {reason}") as caught:
        load_recipe(tmp_path / "r.yaml")
    assert "hush" not in str(caught.value)
