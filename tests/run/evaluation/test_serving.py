"""An evaluation runs on the machine where it was started, whatever the recipe's run has used."""

from pathlib import Path

import pytest

from arl.config.recipe_file import load_recipe
from arl.run.evaluation.evaluate_model import for_evaluation

QUICKSTART = Path(__file__).parents[3] / "recipes" / "quickstart.yaml"


@pytest.mark.parametrize("launcher", ["slurm", "ray"])
def test_a_recipe_for_a_cluster_is_evaluated_on_this_machine(launcher: str) -> None:
    recipe = load_recipe(QUICKSTART, [f"launcher={launcher}", "cluster.nodes=4"])
    local = for_evaluation(recipe)
    assert local.launcher == "local"
    assert local.cluster.fewest_nodes == 1
