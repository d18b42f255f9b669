"""Compare what a disturbed run has trained with what an undisturbed run trains."""

import json
from pathlib import Path

import pyarrow.parquet as pq

from arl.config.recipe_file import load_recipe
from arl.data.problem_order import ProblemOrder
from arl.data.problems import load_problems


def assert_trained_once(run: Path, steps: int) -> None:
    """Check that so many steps trained the problems of an undisturbed run, each in one whole group, none too old."""
    recipe = load_recipe(run / "recipe.yaml")
    num_groups = steps * recipe.rollout.problems_per_step
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in metrics if "loss" in record] == list(range(1, steps + 1))
    rows = pq.read_table(run / "trajectories").to_pylist()
    trained = [row for row in rows if row["trained_at"] is not None]
    ages = [row["trained_at"] - version for row in trained for version in row["policy_versions"] if version >= 0]
    bound = recipe.rollout.max_age if recipe.rollout.lag is None else recipe.rollout.lag
    assert isinstance(bound, int)  # no test draws lags from a file
    assert max(ages) <= bound, f"a token of age {max(ages)} was trained"
    groups = {row["group_id"]: row["problem_id"] for row in trained}
    assert len(trained) == num_groups * recipe.rollout.group_size == len(groups) * recipe.rollout.group_size
    order = ProblemOrder(load_problems(recipe.data, 0).training, 0)
    assert sorted(groups.values()) == sorted(next(order).id for _ in range(num_groups))
