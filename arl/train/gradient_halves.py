"""Split the loss tokens of a minibatch into a stale and a fresh half, by age.

The gradient of a half is the part of the loss's gradient that flows through the log-probabilities of its tokens. So the
two gradients sum up to that of the minibatch, under any objective: ratios, weights and clips are those of the whole.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from arl.train.packer import MicroBatch


class Half(NamedTuple):
    """Name the tokens of one half."""

    median_age: int  # over the computed loss tokens of all ranks; stale tokens are older
    is_stale: bool

    def only(self, logprobs: Tensor, ages: Tensor) -> Tensor:
        """Return log-probabilities (N,) through which no gradient flows but at the tokens of this half."""
        is_own = (ages > self.median_age) == self.is_stale
        return logprobs.where(is_own, logprobs.detach())


def halves(batches: Sequence[MicroBatch], version: int, device: torch.device) -> tuple[Half, Half] | None:
    """Return the stale and the fresh half of a minibatch; None if all its tokens would be in one. Collective.

    Args:
        batches: of this rank.
        version: v, the trainer's version before the step.
    """
    ages = np.concatenate([version - batch.policy_versions for batch in batches])
    oldest = torch.tensor(ages.max(initial=0), device=device)
    if dist.get_world_size() > 1:
        dist.all_reduce(oldest, dist.ReduceOp.MAX)
    counts = torch.from_numpy(np.bincount(ages, minlength=int(oldest) + 1)).to(device)
    if dist.get_world_size() > 1:
        dist.all_reduce(counts)
    tokens_up_to = counts.cumsum(0).tolist()
    num_tokens = tokens_up_to[-1]
    median = next(age for age, count in enumerate(tokens_up_to) if 2 * count >= num_tokens)
    if median == len(tokens_up_to) - 1 or not num_tokens:
        return None
    return Half(median, is_stale=True), Half(median, is_stale=False)
