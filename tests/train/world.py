"""Do cases in one rank of a gloo world: `python -m tests.train.world CASES`, a file of JSON; see workers.run_world.

A checkpoint's weights and moments are drawn by name, so that every world knows what a whole tensor is without asking
another.
"""

import json
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from arl.config.objective_section import ObjectiveSection
from arl.config.recipe import Train
from arl.launch.child import exit_immediately
from arl.models.weights import own_rows
from arl.train import sharding, training_copy
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.algorithms.objective import Objective
from arl.train.learner import Learner
from arl.train.optimizer import LossScale
from arl.train.sharded_model import MOMENTS
from arl.train.sharding import init_ranks
from arl.types import MetricValue
from tests.train.synthetic import batch, packed

STEPS = 2
ADAMS_STEP = 7.0
SCALE = LossScale(1024.0, is_dynamic=True, num_good=5)


def trained(
    model: str, train: dict[str, Any], objective: dict[str, Any] | None = None
) -> tuple[list[dict[str, MetricValue]], dict[str, Tensor]]:
    """Return metrics of a few steps, and the weights after them."""
    settings = {"learning_rate": 1.5e-4, "capacity": 64} | train
    section = Train.model_validate({"dtype": "float32", "minibatches": 2, "halves_every": 1, **settings})
    chosen = ObjectiveSection.model_validate(objective or {})
    assert isinstance(chosen, Objective)
    learner = Learner(model, section, chosen)
    metrics = []
    for version in range(STEPS):
        given = batch(version, groups=8, size=4, seed=version)
        shards, _ = packed(given, 2, section.capacity, dist.get_world_size(), objective=chosen)
        metrics.append(learner.step(shards[dist.get_rank()]))
    return metrics, learner.policy.full_state(torch.float32)


class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts gathers and scatters of torch.distributed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts = {"gather": 0, "scatter": 0}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            for name in self.counts:
                self.counts[name] += name in func.name()
        return func(*args, **(kwargs or {}))


def write_trained(model: str, train: dict[str, Any], directory: str, objective: dict[str, Any] | None = None) -> None:
    """Write what `trained` returns, and how many collectives it took."""
    sharding.WORTH_A_COLLECTIVE = 1  # every block is a unit of its own, as in a real model
    with Counted() as counted:
        metrics, weights = trained(model, train, objective)
    if dist.get_rank() == 0:
        Path(directory).mkdir()
        Path(directory, "counts.json").write_text(json.dumps(counted.counts))
        Path(directory, "metrics.json").write_text(json.dumps(metrics))
        save_file({name: weight.contiguous() for name, weight in weights.items()}, Path(directory, "weights"))


def drawn(name: str, shape: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(shape, generator=generator)


def checkpointed(path: str, train: dict[str, Any], resumed: bool) -> Learner:
    return Learner(path, Train(dtype="float16", minibatches=1, **train), DecoupledPPO(), version=4, resumed=resumed)


def places(held: Learner) -> dict[str, tuple[Tensor, Tensor]]:
    """Return for every weight and moment this rank's rows, and what they are to be."""
    found = {}
    for name, local in held.policy._local.items():
        sharded = held.policy._shards[name]
        first, end = own_rows(sharded)
        shape = tuple(sharded.shape)
        found[name] = (local.detach(), drawn(name, shape)[first:end])
        for moment in MOMENTS:
            key = f"{moment}.{name}"
            found[key] = (held.policy._optimizer.state[local][moment], drawn(key, shape)[first:end])
    return found


def save(model: str, directory: str, train: dict[str, Any]) -> None:
    training_copy.BUCKET_BYTES = 2000  # so that there are several rounds, and ranks have unequal numbers
    held = checkpointed(model, train, resumed=False)
    for place, value in places(held).values():
        place.copy_(value)
    for state in held.policy._optimizer.state.values():
        state["step"].fill_(ADAMS_STEP)
    held.policy.loss_scale = SCALE
    copied = held.policy.training_state()
    for place, _ in places(held).values():
        place.zero_()  # as a later step would, while a thread writes
    held.policy.write(copied, Path(directory))


def resume(directory: str, train: dict[str, Any]) -> None:
    held = checkpointed(directory, train, resumed=True)
    for name, (place, value) in places(held).items():
        assert torch.equal(place, value), f"{directory}: {name}"
    for state in held.policy._optimizer.state.values():
        assert state["step"].item() == ADAMS_STEP, directory
    assert held.policy.loss_scale == SCALE, directory


CASES: dict[str, Callable[..., None]] = {"train": write_trained, "save": save, "resume": resume}


def main() -> None:
    torch.set_num_threads(1)
    init_ranks(deadline_seconds=300)
    for name, arguments in json.loads(Path(sys.argv[1]).read_text()):
        CASES[name](**arguments)
    dist.barrier()
    exit_immediately(0)


if __name__ == "__main__":
    main()
