"""Loss and gradient of one minibatch, without an update."""

import random

import numpy as np
import torch

from arl.train.learner import Learner
from arl.train.packing import LossSequence, MicroBatch, Minibatch
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
    """Return loss and gradient of one rank; the weights stay as they are."""
    sharded = learner.policy
    loss = learner._backward(minibatch, [{}] * len(minibatch.micro_batches))
    return float(loss), dict(zip(sharded._shards, sharded.take_gradient(), strict=True))
