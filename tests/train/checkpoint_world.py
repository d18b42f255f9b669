"""One rank that saves or resumes: `python -m tests.train.checkpoint_world CASE`, a file of JSON; see test_shares.

Weights and moments are drawn by name, so that every world knows what a whole tensor is without asking another.
"""

import json
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from arl.config.recipe import Train
from arl.launch.child import exit_immediately
from arl.models.weights import own_rows
from arl.train import sharded_weights
from arl.train.algorithms.ppo import PPO
from arl.train.learner import Learner
from arl.train.optimizer import LossScale
from arl.train.sharded_weights import MOMENTS
from arl.train.sharding import init_ranks

STEP = 7.0
SCALE = LossScale(1024.0, is_dynamic=True, num_good=5)


def drawn(name: str, shape: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(shape, generator=generator)


def learner(path: str, train: dict[str, Any], resumed: bool) -> Learner:
    return Learner(path, Train(dtype="float16", minibatches=1, **train), PPO(), version=4, resumed=resumed)


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
    sharded_weights.BUCKET_BYTES = 2000  # so that there are several rounds, and ranks have unequal numbers
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


CASES: dict[str, Callable[..., None]] = {"save": save, "resume": resume}


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
