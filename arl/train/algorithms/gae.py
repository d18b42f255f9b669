"""Define generalized advantage estimation (GAE, arXiv 1506.02438) and the loss of its critic (PPO, arXiv 1707.06347).

r, V of a trajectory's loss tokens ─► A (GAE.compute) ─► R = A + V ─► value_loss
                                      └► whitened over the step ─► the objective
"""

from typing import TYPE_CHECKING

import numpy as np

from arl.config.section import Fraction
from arl.train.algorithms.advantage import Advantage, EpisodeColumns

if TYPE_CHECKING:
    from torch import Tensor


class GAE(Advantage):
    """Compute A_t = Σ_k (γλ)^k δ_{t+k}, δ_t = r_t + γ V_{t+1} − V_t, over a trajectory's loss tokens.

    V behind the last one is 0, because an episode ends there. Needs train.critic.
    """

    per = "token"
    columns = ("values",)
    smallest_group = 1

    kind: str = "gae"
    """The short name of this class."""
    discount: Fraction = 1.0
    """γ, per loss token."""
    lam: Fraction = 1.0
    """λ. 1: the return minus the value. Smaller: less variance, and the bias of the critic."""
    whiten: bool = True
    """Subtract the mean over the step's loss tokens on all ranks, and divide by their standard deviation."""

    @property
    def is_whitened(self) -> bool:
        return self.whiten

    def compute(self, episodes: EpisodeColumns) -> np.ndarray:
        values = episodes.values
        rewards = episodes.token_rewards
        assert values is not None and rewards is not None, "ranks give them"
        values = values.astype(np.float64)
        ends = np.repeat(np.cumsum(episodes.num_loss_tokens), episodes.num_loss_tokens)
        remaining = ends - np.arange(len(values))  # of each token to the end of its trajectory
        following = np.where(remaining > 1, np.append(values[1:], 0.0), 0.0)
        deltas = rewards + self.discount * following - values
        return discounted_sums(deltas, self.discount * self.lam, remaining)


def discounted_sums(numbers: np.ndarray, decay: float, remaining: np.ndarray) -> np.ndarray:
    """Sum decay^k · numbers[t + k] over k < remaining[t], for each t, in log2 of the longest's length passes.

    Args:
        numbers: (T,) float64, one trajectory's after the other's.
        remaining: (T,) int, numbers from t on to the end of its trajectory, itself included.
    """
    sums = numbers.copy()
    span = 1  # sums[t] has the numbers of so many tokens
    while span < remaining.max(initial=0):
        at = np.flatnonzero(remaining > span)
        sums[at] += decay**span * sums[at + span]
        span *= 2
    return sums


def value_loss(values: "Tensor", old: "Tensor", returns: "Tensor", clip: float | None) -> "tuple[Tensor, Tensor]":
    """Compute ½ (V − R)² of each token, with `clip` ε ½ max((V − R)², (V_old + clip(V − V_old, ±ε) − R)²).

    Args:
        values: (N,) float32, V with gradient.
        old: (N,) float32, V before the step.

    Returns:
        (N,) with gradient; and (N,) bool, where the clipped loss was larger.
    """
    plain = (values - returns).square()
    if clip is None:
        return plain / 2, plain.isnan()
    clipped = (old + (values - old).clamp(-clip, clip) - returns).square()
    return plain.maximum(clipped) / 2, clipped > plain
