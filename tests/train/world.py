"""One rank of a gloo world, as torchrun would start it: `python -m tests.train.world DIRECTORY`; see test_worlds."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode

from arl.config.recipe import Train
from arl.launch.child import exit_immediately
from arl.train import sharding
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.algorithms.ppo import PPO
from arl.train.learner import Learner
from arl.train.packing import pack_groups
from arl.train.sharding import init_ranks
from arl.types import MetricValue
from tests.train.gradients import sequences
from tests.train.synthetic import batch, packed

STEPS = 3
NAIVE = PPO()


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


class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts gathers and scatters of torch.distributed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: dict[str, int] = {"gather": 0, "scatter": 0}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            for name in self.counts:
                self.counts[name] += name in func.name()
        return func(*args, **(kwargs or {}))


def collectives(model: str, train: dict[str, Any]) -> dict[str, int]:
    """Of one minibatch of three micro-batches, forward and backward."""
    learner = Learner(model, Train(dtype="float32", learning_rate=1.5e-4, minibatches=1, **train), NAIVE)
    pack = pack_groups(sequences(1), 200, ranks=1)[0][0]
    counted = Counted()
    with counted:
        for last in (False, False, True):
            learner.policy.backward(learner.policy.score(pack)[0].sum(), last)
    return counted.counts


def main() -> None:
    directory = Path(sys.argv[1])
    torch.set_num_threads(1)
    init_ranks(deadline_seconds=300)
    sharding.WORTH_A_COLLECTIVE = 1  # every block is a unit of its own, as in a real model
    told: dict[str, Any] = {}
    for name, case in json.loads((directory / "cases.json").read_text()).items():
        if case.pop("kind") == "collectives":
            told[name] = collectives(**case)
            continue
        told[name], tensors = trained(**case)
        if dist.get_rank() == 0:
            dense = {key: tensor.contiguous() for key, tensor in tensors.items()}
            save_file(dense, directory / f"{name}.safetensors")
    if dist.get_rank() == 0:
        (directory / "told.json").write_text(json.dumps(told))
    dist.barrier()
    exit_immediately(0)
