"""An objective is added from outside arl by `objective: {kind: module:Class}`."""

from pathlib import Path

import pytest

from arl.config.recipe import Recipe
from arl.config.recipe_file import dump_recipe, load_recipe
from arl.errors import RecipeError
from arl.train.algorithms.objective import Objective
from arl.train.algorithms.trial import try_objective
from tests.extending import my_objective
from tests.extending.short_run import EQUAL_REWARDS, FIRST_SECTION, ShortRun, step_records

MINE = "tests.extending.my_objective"


def read(tmp_path: Path, objective: str) -> Recipe:
    return ShortRun(tmp_path, sections=f"objective: {objective}").recipe


def refusal(tmp_path: Path, objective: str) -> str:
    with pytest.raises(RecipeError) as caught:
        read(tmp_path, objective)
    return str(caught.value)


def test_an_objective_with_a_gradient_of_its_own_learns_from_groups_of_equal_rewards(tmp_path: Path) -> None:
    """The packer keeps their trajectories, the weights change, and the metrics are named by the objective."""
    run = ShortRun(tmp_path, EQUAL_REWARDS, f"objective.kind={MINE}:Reinforce", "objective.penalty=0.2")
    records = step_records(run.train())
    assert len(records) == 2
    for record in records:
        assert record["advantage/zero_fraction"] == 1.0
        assert record["grad_norm"] > 0.01
        assert 0 < record["objective/penalty"] <= record["objective/penalty_max"]
        of_ages = [mean for mean in record["objective/penalty_by_age"] if mean is not None]
        assert min(of_ages) <= record["objective/penalty"] <= max(of_ages)
        assert "ratio/max" not in record


def test_its_fields_are_the_fields_of_the_recipe_and_a_dumped_recipe_loads_again(tmp_path: Path) -> None:
    recipe = read(tmp_path, f"{{kind: '{MINE}:Reinforce', penalty: 0.3}}")
    assert isinstance(recipe.objective, my_objective.Reinforce)
    assert recipe.objective.penalty == 0.3
    (tmp_path / "dumped.yaml").write_text(dump_recipe(recipe))
    assert load_recipe(tmp_path / "dumped.yaml") == recipe


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("WithoutScope", "lacks the attribute scope; see arl/train/algorithms/ppo.py for a complete one"),
        ("WithWrongScope", "scope is 'group', and must be one of 'token', 'sequence'"),
        (
            "WithOtherParameters",
            "loss(self, logprobs: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor cannot be called as "
            "loss(tokens)",
        ),
        ("WithReference", "it reads the column 'reference_logprobs', which nothing computes yet"),
        ("Reinforced", "tests.extending.my_objective has no attribute Reinforced; did you mean Reinforce?"),
    ],
)
def test_a_class_that_lacks_a_part_is_refused_when_the_recipe_is_read(tmp_path: Path, name: str, rule: str) -> None:
    message = refusal(tmp_path, f"{{kind: '{MINE}:{name}'}}")
    assert f"recipe.yaml:{FIRST_SECTION}: objective.kind '{MINE}:{name}': " in message
    assert rule in message


@pytest.mark.parametrize(
    ("objective", "rule"),
    [
        (my_objective.LogsAnotherName(), r"returned the values \['objective/forfeit'\], and `metrics` declares"),
        (my_objective.NotSummed(), r"the loss is not a sum, a tensor of shape \(\) with a gradient"),
    ],
)
def test_a_loss_that_returns_other_things_than_declared_is_refused_before_the_start(
    objective: Objective, rule: str
) -> None:
    with pytest.raises(RecipeError, match=rule):
        try_objective(objective)
