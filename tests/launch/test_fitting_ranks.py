"""The trainer's world size after a node is gone."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.config.recipe import Recipe
from arl.errors import RecipeError
from arl.launch.device_count import fitting_ranks


def recipe(train: dict[str, Any], engine: dict[str, Any] | None = None, **others: Any) -> Recipe:
    tree = {"model": {"path": "m"}, "data": {"task": "gsm8k"}, "train": train, "engine": engine or {}, **others}
    return Recipe.model_validate(tree)


def test_a_run_of_four_nodes_that_lost_one_resumes_with_a_copy_less() -> None:
    four_nodes = recipe({"ranks": 16, "shard_ranks": 8, "min_ranks": 8}, {"replicas": 16})
    assert fitting_ranks(four_nodes, 32) == 16
    assert fitting_ranks(four_nodes, 24) == 8


def test_without_min_ranks_and_without_gpus_the_world_size_is_the_recipes() -> None:
    assert fitting_ranks(recipe({"ranks": 8}), 3) == 8
    assert fitting_ranks(recipe({"ranks": 8, "min_ranks": 2}), 0) == 8


def test_evaluation_beside_the_training_keeps_its_gpu_and_collocated_engines_need_none() -> None:
    train = {"ranks": 8, "min_ranks": 1}
    assert fitting_ranks(recipe(train, {"replicas": 2}, eval={"every": 5}), 8) == 5
    assert fitting_ranks(recipe(train, {"replicas": 8}, mode="collocated"), 6) == 6


def test_too_few_gpus_are_refused_with_what_is_there() -> None:
    with pytest.raises(RecipeError, match=r"24 GPUs are left, of which the trainer gets 6, 0 as a multiple") as error:
        fitting_ranks(recipe({"ranks": 16, "shard_ranks": 8, "min_ranks": 8}, {"replicas": 18}), 24)
    assert "train.min_ranks 8" in str(error.value)


@given(st.integers(1, 16), st.integers(1, 8), st.integers(1, 8), st.integers(1, 64))
def test_what_fits_divides_as_sharding_needs_and_leaves_the_engines_their_gpus(
    copies: int, shard_ranks: int, replicas: int, devices: int
) -> None:
    ranks = copies * shard_ranks
    train = {"ranks": ranks, "shard_ranks": shard_ranks, "min_ranks": shard_ranks}
    try:
        found = fitting_ranks(recipe(train, {"replicas": replicas}), devices)
    except RecipeError:
        assert devices < replicas + shard_ranks
        return
    assert found % shard_ranks == 0
    assert shard_ranks <= found <= ranks
    assert found + replicas <= devices
    assert found == ranks or found + shard_ranks + replicas > devices
