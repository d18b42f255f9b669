"""Compute the advantage of AReaL's paper: a reward relative to those of the whole step; arXiv 2505.24298.

The paper takes PPO with γ = λ = 1 and neither critic nor reference, so the advantage of every token is the episode's
reward, before it is normalized over the batch.
"""

import numpy as np

from arl.train.algorithms.advantage import Advantage, EpisodeColumns

EPSILON = 1e-5  # keeps a batch of almost equal rewards finite


class BatchNorm(Advantage):
    """Compare each reward with those of all loss tokens of the step: A = (r − mean) / (std + 1e-5).

    A long episode counts more, because each of its tokens counts. Groups play no part: one whose rewards are all equal
    is trained, up if they are above the batch's mean and down if below. A is exactly 0 in a step of equal rewards.
    """

    per = "trajectory"
    columns = ()
    smallest_group = 1

    kind: str = "batch_norm"
    """The short name of this class."""

    def compute(self, episodes: EpisodeColumns) -> np.ndarray:
        return batch_norm_advantages(episodes.rewards, episodes.num_loss_tokens)


def batch_norm_advantages(rewards: np.ndarray, num_loss_tokens: np.ndarray) -> np.ndarray:
    """Compute A = (r − mean) / (std + ε), where std² = Σ (r − mean)² / T: sums and mean are over the T loss tokens.

    Args:
        rewards: (N,) float, of each episode, which is that of each of its loss tokens.
        num_loss_tokens: (N,) int, summing to T.

    Returns:
        (N,) float32; exactly 0 if the rewards of all episodes that have a loss token are equal.
    """
    assert rewards.ndim == 1
    assert num_loss_tokens.shape == rewards.shape
    assert np.isfinite(rewards).all()
    rewards = rewards.astype(np.float64)
    counted = rewards[num_loss_tokens > 0]
    if not len(counted) or counted.min() == counted.max():
        return np.zeros(len(rewards), np.float32)
    centered = rewards - np.average(rewards, weights=num_loss_tokens)
    variance = np.average(centered**2, weights=num_loss_tokens)
    advantages: np.ndarray = centered / (np.sqrt(variance) + EPSILON)
    return advantages.astype(np.float32)
