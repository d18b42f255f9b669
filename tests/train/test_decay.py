"""train.decayed: matrices keeps norms, biases and embeddings of every family from decaying."""

from pathlib import Path
from typing import Literal

import pytest
import torch
from transformers import AutoModelForCausalLM

from arl.config.recipe import Train
from arl.train.sharded_model import ShardedModel
from arl.train.sharded_weights import matrices
from arl.train.sharding import init_ranks
from tests.train.families import FAMILIES, make_family

pytestmark = pytest.mark.usefixtures("alone")

PROJECTIONS = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]


@pytest.mark.parametrize("name", FAMILIES)
def test_only_projections_and_an_untied_head_are_matrices(name: str) -> None:
    model = AutoModelForCausalLM.from_config(FAMILIES[name])
    expected = {f"model.layers.{i}.{projection}.weight" for i in range(2) for projection in PROJECTIONS}
    if not name.endswith("tied"):
        expected.add("lm_head.weight")
    assert matrices(model) == expected
    assert matrices(model) < {parameter for parameter, _ in model.named_parameters()}


@pytest.mark.parametrize("decayed", ["all", "matrices"])
def test_an_update_without_gradient_shrinks_what_decays_and_nothing_else(
    decayed: Literal["all", "matrices"], tmp_path: Path
) -> None:
    path = make_family("qwen2-tied", tmp_path)
    train = Train(dtype="float32", weight_decay=0.5, decayed=decayed)
    model = ShardedModel(path, train, 1.0, init_ranks(deadline_seconds=60.0))
    before = model.full_state(torch.float32)
    for parameter in model.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    model.update(0.1, torch.zeros(()))
    after = model.full_state(torch.float32)
    shrunk = {name for name in before if torch.allclose(after[name], before[name] * (1 - 0.1 * 0.5))}
    kept = {name for name in before if torch.equal(after[name], before[name])}
    assert shrunk == (set(before) if decayed == "all" else matrices(model.model))
    assert shrunk | kept == set(before)
