"""Compute RLOO's advantage: a reward relative to the others of the same problem; arXiv 2402.14740."""

import numpy as np

from arl.train.algorithms.advantage import Advantage, EpisodeColumns
from arl.train.algorithms.grpo import spread_groups


class RLOO(Advantage):
    """Compare each reward with the mean of the others in its group: A_i = r_i − Σ_{j ≠ i} r_j / (G − 1).

    A is exactly 0 in a group of equal rewards. It is not divided by a standard deviation.
    """

    per = "trajectory"
    columns = ()
    smallest_group = 2

    kind: str = "rloo"
    """The short name of this class."""

    def compute(self, episodes: EpisodeColumns) -> np.ndarray:
        return rloo_advantages(episodes.rewards, episodes.group_sizes)


def rloo_advantages(rewards: np.ndarray, group_sizes: np.ndarray) -> np.ndarray:
    """Compute A_i = r_i − mean of the others = (r_i − mean) · G / (G − 1) within each group.

    Args:
        rewards: (N,) float, group by group.
        group_sizes: (P,) int, summing to N.

    Returns:
        (N,) float32; exactly 0 in a group whose rewards are all equal.
    """
    groups = spread_groups(rewards, group_sizes)
    others = np.maximum(1, groups.sizes - 1)
    advantages = groups.centered * groups.sizes / others
    return np.where(groups.are_equal, 0.0, advantages).astype(np.float32)
