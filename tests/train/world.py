"""One rank of a gloo world, as torchrun would start it: `python -m tests.train.world DIRECTORY`; see test_worlds."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from arl.config.recipe import Train
from arl.launch.child import exit_immediately
from arl.train import sharding
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.learner import Learner
from arl.train.sharding import init_ranks
from arl.types import MetricValue
from tests.train.synthetic import batch, packed

STEPS = 3


def trained(model: str, train: dict[str, Any]) -> tuple[list[dict[str, MetricValue]], dict[str, torch.Tensor]]:
    """Metrics of a few steps, and the weights after them."""
    learner = Learner(
        model,
        Train(dtype="float32", learning_rate=1.5e-4, minibatches=2, capacity=64, halves_every=1, **train),
        DecoupledPPO(),
    )
    shards = [
        packed(batch(v, groups=8, size=4, seed=v), 2, 64, dist.get_world_size())[0][dist.get_rank()]
        for v in range(STEPS)
    ]
    metrics = [learner.step(shard) for shard in shards]
    return metrics, learner.policy.full_state(torch.float32)


def main() -> None:
    directory = Path(sys.argv[1])
    torch.set_num_threads(1)
    init_ranks(deadline_seconds=300)
    sharding.WORTH_A_COLLECTIVE = 1  # every block is a unit of its own, as in a real model
    told: dict[str, Any] = {}
    for name, case in json.loads((directory / "cases.json").read_text()).items():
        told[name], tensors = trained(**case)
        if dist.get_rank() == 0:
            dense = {key: tensor.contiguous() for key, tensor in tensors.items()}
            save_file(dense, directory / f"{name}.safetensors")
    if dist.get_rank() == 0:
        (directory / "told.json").write_text(json.dumps(told))
    dist.barrier()
    exit_immediately(0)
