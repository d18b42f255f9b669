"""Too few GPUs are refused with what each side asks for, how many there are, and what helps."""

from typing import Any

import pytest

from arl.config.recipe import Recipe
from arl.errors import RecipeError
from arl.launch.base import Node
from arl.launch.placement import place


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
    assert message.endswith(
        ": use a smaller engine.replicas or train.ranks, or a machine with 8 GPUs, or mode collocated"
    )


def test_a_collocated_recipe_is_not_advised_to_collocate() -> None:
    assert "mode collocated" not in refusal(recipe("collocated", replicas=4, ranks=4), node(1)).partition(": use")[2]


def test_the_cpu_is_offered_only_where_gpus_are_there_to_be_hidden() -> None:
    settings = recipe(replicas=2, ranks=2)
    here = refusal(settings, node(3, planned=False))
    assert "there are 3 visible: use " in here
    assert here.endswith("CUDA_VISIBLE_DEVICES= for the CPU")
    assert "CUDA_VISIBLE_DEVICES" not in refusal(settings, node(3))
    assert "for the CPU" not in refusal(recipe(replicas=2, ranks=2, width=2), node(3, planned=False))


def test_an_evaluation_that_lacks_a_gpu_may_be_left_out() -> None:
    message = refusal(recipe(replicas=4, ranks=4, eval={"problems": 8, "every": 10}), node(8))
    assert "which makes 8, and evaluation during training (eval.every 10) 1 more; there are 8" in message
    assert "or eval.every 0 with `arl eval` on the checkpoints" in message
