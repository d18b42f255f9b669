"""Too few GPUs are refused with what each side asks for, how many there are, and what to lower."""

import pytest

from arl.config.recipe import Recipe
from arl.errors import RecipeError
from arl.launch.base import Node
from arl.launch.placement import place

RECIPE = {
    "model": {"path": "a model"},
    "data": {"task": "gsm8k"},
    "engine": {"kind": "sglang", "replicas": 2, "tensor_parallel": 2},
    "train": {"ranks": 4},
    "eval": {"problems": 8, "every": 10},
}


def test_both_sides_are_named_with_their_fields_beside_the_gpus_that_are_there() -> None:
    with pytest.raises(RecipeError) as raised:
        place(Recipe.model_validate(RECIPE), [Node("box", 16, ("0", "1"), planned_by="--gpus 2xH100")])
    message = str(raised.value)
    assert "engines need 4 GPUs (engine.replicas 2 × engine.tensor_parallel 2)" in message
    assert "the trainer 4 (train.ranks 4) on GPUs of their own, which makes 8" in message
    assert "evaluation during training 2 GPUs more (--set eval.every=0: none)" in message
    assert "there are 2 (--gpus 2xH100): lower engine.replicas or train.ranks" in message
