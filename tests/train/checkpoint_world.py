"""One rank that saves or resumes: `python -m tests.train.checkpoint_world CASE`, a file of JSON; see test_shares.

Weights and moments are drawn by name, so that every world knows what a whole tensor is without asking another.
"""

import json
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from arl.config.recipe import Train
from arl.launch.child import exit_immediately
from arl.models.weights import own_rows
from arl.sync.buckets import TensorSpec
from arl.train import sharded_weights
from arl.train.algorithms.ppo import PPO
from arl.train.gathering import shard_group
from arl.train.learner import Learner
from arl.train.optimizer import LossScale
from arl.train.sharded_weights import MOMENTS, TrainingCopy
from arl.train.sharding import init_ranks, local_part
from tests.train.gradients import whole_tensor

STEP = 7.0
SCALE = LossScale(1024.0, is_dynamic=True, num_good=5)
DRAWS = 15


def drawn(name: str, shape: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(shape, generator=generator)


def learner(path: str, train: dict[str, Any], resumed: bool) -> Learner:
    return Learner(path, Train(dtype="float16", minibatches=1, **train), PPO(), version=4, resumed=resumed)


def places(held: Learner) -> dict[str, tuple[Tensor, Tensor]]:
    """Return for every weight and moment this rank's rows, and what they are to be."""
    found = {}
    for name, sharded, local in held.policy._parameters():
        first, end = own_rows(sharded)
        shape = tuple(sharded.shape)
        found[name] = (local.detach(), drawn(name, shape)[first:end])
        for moment in MOMENTS:
            key = f"{moment}.{name}"
            found[key] = (held.policy._optimizer.state[local][moment], drawn(key, shape)[first:end])
    return found


def save(model: str, directory: str, train: dict[str, Any]) -> None:
    held = learner(model, train, resumed=False)
    for place, value in places(held).values():
        place.copy_(value)
    for state in held.policy._optimizer.state.values():
        state["step"].fill_(STEP)
    held.policy.loss_scale = SCALE
    state = held.policy.training_state()
    for place, _ in places(held).values():
        place.zero_()  # as a later step would, while a thread writes
    held.policy.write(state, Path(directory), tokenizer_path=model)


def resume(directories: list[str], train: dict[str, Any]) -> None:
    for directory in directories:
        held = learner(directory, train, resumed=True)
        for name, (place, value) in places(held).items():
            assert torch.equal(place, value), f"{directory}: {name}"
        for state in held.policy._optimizer.state.values():
            assert state["step"].item() == STEP, directory
        assert held.policy.loss_scale == SCALE, directory


class Shapes(nn.Module):
    """Hold parameters of drawn shapes; every rank draws the same."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        self.weights = nn.ParameterList()
        for _ in range(rng.integers(1, 9)):
            shape = rng.integers(1, 12, size=rng.integers(1, 4))
            self.weights.append(nn.Parameter(torch.randn(*shape.tolist())))


def copy_drawn_shapes() -> None:
    """Compare the shares of all ranks with the whole tensors; some have fewer rows than there are ranks."""
    for seed in range(DRAWS):
        sharded_weights.BUCKET_BYTES = 1 + 97 * seed  # so that there are several rounds, and ranks have unequal numbers
        shapes = Shapes(seed)
        fully_shard(shapes)
        parameters = dict(shapes.named_parameters())
        specs = [TensorSpec(name, "float32", tuple(parameter.shape)) for name, parameter in parameters.items()]
        shards = {name: local_part(parameter.detach()) for name, parameter in parameters.items()}
        copied = TrainingCopy(specs, shard_group(next(iter(parameters.values())))).copy_weights(shards)
        for name, parameter in parameters.items():
            whole = whole_tensor(shards[name], parameter)
            assert name not in copied or torch.equal(copied[name], whole), name
        counts = torch.tensor([float(name in copied) for name in parameters])
        dist.all_reduce(counts)
        assert (counts == 1).all(), f"seed {seed}: {counts}"


CASES: dict[str, Callable[..., None]] = {"save": save, "resume": resume, "copy_drawn_shapes": copy_drawn_shapes}


def main() -> None:
    case = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    init_ranks(deadline_seconds=300)
    for name, arguments in case.items():
        CASES[name](**arguments)
    dist.barrier()
    exit_immediately(0)


if __name__ == "__main__":
    main()
