"""train.decayed: matrices keeps norms, biases and embeddings of every family from decaying."""

from pathlib import Path
from typing import Literal

import pytest
import torch

from arl.config.recipe import Train
from arl.train.sharded_model import ShardedModel
from arl.train.sharded_weights import matrices
from arl.train.sharding import init_ranks
from tests.train.families import make_family

pytestmark = pytest.mark.usefixtures("alone")


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
