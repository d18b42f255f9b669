"""Compute GRPO's advantage: a reward relative to those of the same problem; DeepSeekMath, arXiv 2402.03300, §4.1.2."""

from typing import NamedTuple

import numpy as np

from arl.train.algorithms.advantage import Advantage, EpisodeColumns

EPSILON = 1e-6  # keeps a group of almost equal rewards finite


class Spread(NamedTuple):
    """Hold what advantages that compare within a group need, for each of N episodes."""

    centered: np.ndarray  # (N,) float64, r − the mean of its group
    sizes: np.ndarray  # (N,) int, G of its group
    are_equal: np.ndarray  # (N,) bool: all rewards of its group are equal, so that `centered` is rounding alone


class GRPO(Advantage):
    """Compare each reward with those of its group: A = (r − mean) / (std + 1e-6), with the sample's std.

    A is exactly 0 in a group of equal rewards.
    """

    per = "trajectory"
    columns = ()
    smallest_group = 2

    kind: str = "grpo"
    """The short name of this class."""

    def compute(self, episodes: EpisodeColumns) -> np.ndarray:
        return grpo_advantages(episodes.rewards, episodes.group_sizes)


def grpo_advantages(rewards: np.ndarray, group_sizes: np.ndarray) -> np.ndarray:
    """Compute A = (r − mean) / (std + ε) within each group, where std² = Σ (r − mean)² / (G − 1).

    Args:
        rewards: (N,) float, group by group.
        group_sizes: (P,) int, summing to N.

    Returns:
        (N,) float32; exactly 0 in a group whose rewards are all equal.
    """
    groups = spread_groups(rewards, group_sizes)
    starts = np.cumsum(group_sizes) - group_sizes
    degrees_of_freedom = np.maximum(1, group_sizes - 1)
    variance = np.add.reduceat(groups.centered**2, starts) / degrees_of_freedom
    std = np.sqrt(variance)
    advantages = groups.centered / np.repeat(std + EPSILON, group_sizes)
    return np.where(groups.are_equal, 0.0, advantages).astype(np.float32)


def spread_groups(rewards: np.ndarray, group_sizes: np.ndarray) -> Spread:
    """Tell each of N episodes, (N,) with group sizes (P,) that sum to N, what its advantage needs of its group."""
    assert rewards.ndim == 1
    assert group_sizes.ndim == 1
    assert group_sizes.sum() == len(rewards)
    assert (group_sizes > 0).all()
    assert np.isfinite(rewards).all()
    rewards = rewards.astype(np.float64)
    starts = np.cumsum(group_sizes) - group_sizes
    means = np.add.reduceat(rewards, starts) / group_sizes
    largest = np.maximum.reduceat(rewards, starts)
    smallest = np.minimum.reduceat(rewards, starts)
    return Spread(
        centered=rewards - np.repeat(means, group_sizes),
        sizes=np.repeat(group_sizes, group_sizes),
        are_equal=np.repeat(largest == smallest, group_sizes),
    )
