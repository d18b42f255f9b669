"""Advantages of a batch of episodes. Pure numpy functions; N episodes in P groups, one after another."""

import numpy as np

EPSILON = 1e-6  # keeps a group of almost equal rewards finite


def grpo_advantages(rewards: np.ndarray, group_sizes: np.ndarray) -> np.ndarray:
    """A = (r − mean) / (std + ε) within each group; DeepSeekMath, arXiv 2402.03300, §4.1.2.

    Args:
        rewards: (N,) float, group by group.
        group_sizes: (P,) int, summing to N.

    Returns:
        (N,) float32; exactly 0 in a group whose rewards are all equal. std is the population's.
    """
    assert rewards.ndim == 1 and group_sizes.ndim == 1 and group_sizes.sum() == len(rewards)
    assert (group_sizes > 0).all() and np.isfinite(rewards).all()
    rewards = rewards.astype(np.float64)
    starts = np.cumsum(group_sizes) - group_sizes
    centered = rewards - np.repeat(np.add.reduceat(rewards, starts) / group_sizes, group_sizes)
    std = np.sqrt(np.add.reduceat(centered**2, starts) / group_sizes)
    equal = np.maximum.reduceat(rewards, starts) == np.minimum.reduceat(rewards, starts)
    advantages = centered / np.repeat(std + EPSILON, group_sizes)
    return np.where(np.repeat(equal, group_sizes), 0.0, advantages).astype(np.float32)
