"""Split the loss tokens of a minibatch into a stale and a fresh half, by age.

The gradient of a half is the part of the loss's gradient that flows through the log-probabilities and entropies of its
tokens. So the two gradients sum up to that of the minibatch, under any objective: ratios, weights and clips are those
of the whole.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from arl.train.micro_batch import MicroBatch


class Half(NamedTuple):
    """Name the tokens of one half."""

    oldest_fresh: int  # age; stale tokens are older
    is_stale: bool

    def only(self, column: Tensor, ages: Tensor) -> Tensor:
        """Return a column (N,) through which no gradient flows but at the tokens of this half."""
        is_older = ages > self.oldest_fresh
        is_own = is_older == self.is_stale
        return column.where(is_own, column.detach())


def halves(batches: Sequence[MicroBatch], version: int, device: torch.device) -> tuple[Half, Half] | None:
    """Return the stale and the fresh half of a minibatch; None if all its tokens have one age. Collective.

    They are cut between two ages, so that they are as equal in tokens of all ranks as possible.

    Args:
        batches: of this rank.
        version: v, the trainer's version before the step.
    """
    ages = np.concatenate([version - batch.policy_versions for batch in batches])
    tokens = _tokens_of_age(ages, device)
    *fresh_tokens, num_tokens = np.cumsum(tokens).tolist()  # if the cut comes after age 0, 1, …
    cuts = [age for age, fresh in enumerate(fresh_tokens) if fresh]
    if not cuts:
        return None
    most_even = min(cuts, key=lambda age: abs(num_tokens - 2 * fresh_tokens[age]))
    stale = Half(most_even, is_stale=True)
    fresh = Half(most_even, is_stale=False)
    return stale, fresh


def _tokens_of_age(ages: np.ndarray, device: torch.device) -> np.ndarray:
    """Count the tokens of age 0, 1, … of all ranks, (oldest + 1,) int64. Collective."""
    is_alone = dist.get_world_size() == 1
    oldest = torch.tensor(ages.max(initial=0), device=device)
    if not is_alone:
        dist.all_reduce(oldest, dist.ReduceOp.MAX)
    of_rank = np.bincount(ages, minlength=int(oldest) + 1)
    counts = torch.from_numpy(of_rank).to(device)
    if not is_alone:
        dist.all_reduce(counts)
    return counts.cpu().numpy()
