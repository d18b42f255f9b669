"""Too few GPUs are refused with what each side asks for, how many there are, and settings that can be placed there."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.config.recipe import Recipe
from arl.errors import RecipeError
from arl.launch.base import Node
from arl.launch.placement import place
from tests.examples import examples


def recipe(mode: str = "disaggregated", *, replicas: int, ranks: int, width: int = 1, **sections: Any) -> Recipe:
    base = {
        "mode": mode,
        "model": {"path": "a model"},
        "data": {"task": "gsm8k"},
        "engine": {"kind": "sglang", "replicas": replicas, "tensor_parallel": width},
        "train": {"ranks": ranks},
        "eval": {"problems": 0},
    }
    return Recipe.model_validate(base | sections)


def node(count: int, planned: bool = True) -> Node:
    planned_by = f"--gpus {count}xH100" if planned else None
    return Node("box", 16, tuple(map(str, range(count))), planned_by=planned_by)


def refusal(settings: Recipe, machine: Node) -> str:
    with pytest.raises(RecipeError) as raised:
        place(settings, [machine])
    return str(raised.value)


def test_both_sides_are_named_with_their_fields_beside_the_gpus_that_are_planned_for() -> None:
    message = refusal(recipe(replicas=2, ranks=4, width=2), node(4))
    assert "engines need 4 GPUs (engine.replicas 2 × engine.tensor_parallel 2)" in message
    assert "the trainer 4 (train.ranks 4) on GPUs of their own, which makes 8; there are 4 (--gpus 4xH100)" in message
    assert message.endswith(": use --set engine.replicas=1 --set train.ranks=2, or --set mode=collocated")


def test_ranks_are_kept_or_halved_so_that_no_odd_world_size_is_offered() -> None:
    assert ": use --set engine.replicas=24 --set train.ranks=8" in refusal(recipe(replicas=32, ranks=8), node(32))
    assert ": use --set engine.replicas=7 --set train.ranks=2" in refusal(recipe(replicas=24, ranks=8), node(9))


def test_a_collocated_recipe_is_not_advised_to_collocate() -> None:
    message = refusal(recipe("collocated", replicas=4, ranks=4), node(1))
    assert message.endswith("there is 1 (--gpus 1xH100): use --set engine.replicas=1 --set train.ranks=1")


def test_one_gpu_is_shared_by_fewer_processes() -> None:
    message = refusal(recipe(replicas=4, ranks=4), node(1))
    assert message.endswith(": use --set mode=collocated --set engine.replicas=1 --set train.ranks=1")


def test_modes_that_the_recipe_cannot_have_are_not_offered() -> None:
    message = refusal(recipe(replicas=2, ranks=2, rollout={"lag": 1}), node(1))
    assert message.endswith("use a machine with 4 GPUs or more")


def test_the_cpu_is_offered_only_where_gpus_are_there_to_be_hidden() -> None:
    settings = recipe(replicas=2, ranks=2)
    here = refusal(settings, node(3, planned=False))
    assert "there are 3 visible: use " in here
    assert here.endswith("CUDA_VISIBLE_DEVICES= for the CPU")
    assert "CUDA_VISIBLE_DEVICES" not in refusal(settings, node(3))
    assert "for the CPU" not in refusal(recipe(replicas=2, ranks=2, width=2), node(3, planned=False))


def test_an_evaluation_that_lacks_a_gpu_may_be_left_out_or_given_one() -> None:
    evaluates = {"problems": 8, "every": 10}
    message = refusal(recipe(replicas=4, ranks=4, eval=evaluates), node(8))
    assert (
        "which makes 9 with the 8 of engines and ranks; there are 8 (--gpus 8xH100): use --set eval.every=0" in message
    )
    assert "or --set engine.replicas=3 --set train.ranks=4, or --set mode=collocated" in message


@examples(3)
@given(
    mode=st.sampled_from(["disaggregated", "collocated"]),
    replicas=st.integers(1, 9),
    ranks=st.integers(1, 9),
    width=st.sampled_from([1, 2, 4]),
    every=st.sampled_from([0, 5]),
    count=st.integers(1, 12),
)
def test_everything_that_is_offered_can_be_placed(
    mode: str, replicas: int, ranks: int, width: int, every: int, count: int
) -> None:
    settings = recipe(mode, replicas=replicas, ranks=ranks, width=width, eval={"problems": 8, "every": every})
    try:
        place(settings, [node(count)])
    except RecipeError as error:
        _, _, advice = str(error).rpartition(": use ")
        for remedy in advice.split(", or "):
            enough = count if "--set" in remedy and "eval.every" not in remedy else 99
            place(with_(settings, remedy), [node(enough)])


def with_(settings: Recipe, remedy: str) -> Recipe:
    tree = settings.model_dump(mode="json")
    for field, value in re.findall(r"--set ([a-z_.]+)=(\w+)", remedy):
        section, _, name = field.rpartition(".")
        (tree[section] if section else tree)[name] = value
    return Recipe.model_validate(tree)
