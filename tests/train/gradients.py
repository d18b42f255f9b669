"""Loss and gradient of one minibatch, without an update."""

import random

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from arl.train.learner import Learner
from arl.train.packing import LossSequence, MicroBatch, Minibatch
from arl.train.sharding import local_part
from tests.train.columns import loss_sequence


def sequences(seed: int) -> list[list[LossSequence]]:
    """Groups that share a prompt, with tokens outside the loss, ties, and behavior logprobs of another policy."""
    rng = random.Random(seed)
    groups = []
    for _ in range(rng.randint(1, 4)):
        prompt = [rng.randrange(14) for _ in range(rng.randint(1, 12))]
        groups.append([_sequence(prompt, rng) for _ in range(rng.randint(1, 4))])
    return groups


def _sequence(prompt: list[int], rng: random.Random) -> LossSequence:
    tokens = np.array(prompt + [rng.randrange(3) for _ in range(rng.randint(1, 18))], np.int32)
    after = range(len(prompt), len(tokens))
    at = np.array(sorted(rng.sample(after, max(1, len(after) - 2))))
    behavior = np.array([-rng.uniform(1, 4) for _ in at], np.float32)
    advantages = np.full(len(at), rng.choice([-1.5, 0.25, 1.0]), np.float32)
    return loss_sequence(tokens, at, advantages, behavior)


def gradient_of(learner: Learner, minibatch: Minibatch[MicroBatch]) -> tuple[float, dict[str, torch.Tensor]]:
    """Summed over ranks; the weights stay as they are. Collective."""
    sharded, total = learner.policy, torch.zeros(())
    for i, batch in enumerate(minibatch.micro_batches):
        loss = learner._policy_loss(batch, {}, minibatch)
        sharded.backward(loss, last=i + 1 == len(minibatch.micro_batches))
        total += loss.detach()
    gradient = {
        name: whole_tensor(local_part(p.grad), p).clone() for name, p in sharded._shards.items() if p.grad is not None
    }
    for parameter in sharded._shards.values():
        parameter.grad = None
    if sharded._world > 1:
        torch.distributed.all_reduce(total)
    return float(total), gradient


def whole_tensor(local: torch.Tensor, sharded: torch.Tensor) -> torch.Tensor:
    """Gather by torch the tensor of which every rank has a part, `local`, sharded as the parameter is. Collective."""
    assert isinstance(sharded, DTensor)
    part = DTensor.from_local(
        local, sharded.device_mesh, sharded.placements, shape=sharded.shape, stride=sharded.stride()
    )
    whole: torch.Tensor = part.full_tensor()
    return whole
