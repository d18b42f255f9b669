"""Define the advantage seam, a pure numpy function of rewards, groups and, if it says so, values; and those of arl.

    Batch ─► EpisodeColumns ─► Advantage.compute ─► one number a trajectory, or one a loss token ─► LossSequence

It is computed where its inputs are: on the controller's side, while the batch is packed; with values, on the ranks.

    GRPO        within a group, divided by its standard deviation; DeepSeekMath, arXiv 2402.03300, §4.1.2
    Centered    within a group, without its standard deviation; Dr. GRPO, arXiv 2503.20783
    RLOO        within a group, against the others; arXiv 2402.14740
    BatchNorm   within the whole step, as in AReaL's paper; arXiv 2505.24298. It takes PPO with γ = λ = 1 and neither
                critic nor reference, so the advantage of every token is the episode's reward, before it is normalized
    ReinforcePlusPlus   against its group or nothing, discounted, then over the whole step; arXiv 2501.03262
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from arl.config.objective_section import AdvantageSection
from arl.config.section import Fraction

EPSILON = 1e-6  # keeps a group of almost equal rewards finite
BATCH_EPSILON = 1e-5  # keeps a batch of almost equal rewards finite
WHITENING_EPSILON = 1e-8  # likewise, of REINFORCE++


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeColumns:
    """Hold what an advantage may read of the N episodes of a step, group by group."""

    rewards: np.ndarray  # (N,) float64
    group_sizes: np.ndarray  # (P,) int64, summing to N
    num_loss_tokens: np.ndarray  # (N,) int64, of each episode with all of its branches; they sum to T
    values: np.ndarray | None = None  # (T,) float32, a critic's values, one episode's tokens after the other's
    token_rewards: np.ndarray | None = None  # (T,) float32 beside values: the reward is at the last token


class Advantage(AdvantageSection):
    """Compute advantages. The fields of a subclass are its settings, in the recipe's section `advantage`.

    A worked example, chosen by `advantage: my_advantage:AboveMean`:

        class AboveMean(Advantage):
            '''A = r − the mean reward of the whole step.'''

            per = "trajectory"
            columns = ()
            smallest_group = 1

            def compute(self, episodes):
                return episodes.rewards - episodes.rewards.mean()
    """

    @abstractmethod
    def compute(self, episodes: EpisodeColumns) -> np.ndarray:
        """Compute the advantages of a step.

        Returns:
            (N,) float with `per` trajectory: every loss token of an episode gets its number. (T,) float with `per`
            token: one episode's loss tokens after the other's.
        """


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
    centered, are_equal = center_groups(rewards, group_sizes)
    starts = np.cumsum(group_sizes) - group_sizes
    variance = np.add.reduceat(centered**2, starts) / np.maximum(1, group_sizes - 1)
    advantages = centered / np.repeat(np.sqrt(variance) + EPSILON, group_sizes)
    return np.where(are_equal, 0.0, advantages).astype(np.float32)


def center_groups(rewards: np.ndarray, group_sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Center the rewards of N episodes, (N,) with group sizes (P,) that sum to N.

    Returns:
        (N,) float64, r − the mean of its group; and (N,) bool: all rewards of its group are equal, so that the number
        is rounding alone.
    """
    assert np.isfinite(rewards).all()
    rewards = rewards.astype(np.float64)
    starts = np.cumsum(group_sizes) - group_sizes
    means = np.add.reduceat(rewards, starts) / group_sizes
    are_equal = np.maximum.reduceat(rewards, starts) == np.minimum.reduceat(rewards, starts)
    return rewards - np.repeat(means, group_sizes), np.repeat(are_equal, group_sizes)


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
    centered, are_equal = center_groups(rewards, group_sizes)
    sizes = np.repeat(group_sizes, group_sizes)
    advantages = centered * sizes / np.maximum(1, sizes - 1)
    return np.where(are_equal, 0.0, advantages).astype(np.float32)


class Centered(Advantage):
    """Compare each reward with the mean of its group: A = r − mean, with `std: batch` divided by that of all rewards.

    Without a standard deviation it is Dr. GRPO's (arXiv 2503.20783), with the batch's Lite PPO's (arXiv 2508.08221):
    std² = Σ (r − mean of all)² / (N − 1), plus 1e-6. A is exactly 0 in a group of equal rewards.
    """

    per = "trajectory"
    columns = ()
    smallest_group = 2

    kind: str = "centered"
    """The short name of this class."""
    std: Literal["none", "batch"] = "none"
    """What divides the centered rewards."""

    def compute(self, episodes: EpisodeColumns) -> np.ndarray:
        centered, are_equal = center_groups(episodes.rewards, episodes.group_sizes)
        if self.std == "batch":
            centered = centered / (episodes.rewards.std(ddof=1) + EPSILON)
        return np.where(are_equal, 0.0, centered).astype(np.float32)


class ReinforcePlusPlus(Advantage):
    """Normalize discounted rewards over all loss tokens of the step (arXiv 2501.03262).

        A_t = γ^(n − 1 − t) (r − mean of its group), of n tokens; then (A − mean) / √(variance + 1e-8) over the step

    The variance is the sample's. A is exactly 0 in a step in which nothing differs.
    """

    per = "token"
    columns = ()

    kind: str = "reinforce_plus_plus"
    """The short name of this class."""
    baseline: Literal["group", "none"] = "group"
    """Whether the mean of its group is taken from a reward first, as in REINFORCE++-baseline."""
    discount: Annotated[Fraction, Field(gt=0)] = 1.0
    """γ."""

    @property
    def smallest_group(self) -> int:  # type: ignore[override]
        return 2 if self.baseline == "group" else 1

    def compute(self, episodes: EpisodeColumns) -> np.ndarray:
        lengths = episodes.num_loss_tokens
        rewards = episodes.rewards.astype(np.float64)
        if self.baseline == "group":
            centered, are_equal = center_groups(rewards, episodes.group_sizes)
            rewards = np.where(are_equal, 0.0, centered)
        ends = np.cumsum(lengths)
        tokens_left = np.repeat(ends, lengths) - np.arange(lengths.sum()) - 1
        returns = np.repeat(rewards, lengths) * self.discount**tokens_left
        if not len(returns) or returns.min() == returns.max():
            return np.zeros(len(returns), np.float32)
        whitened: np.ndarray = (returns - returns.mean()) / np.sqrt(returns.var(ddof=1) + WHITENING_EPSILON)
        return whitened.astype(np.float32)


class BatchNorm(Advantage):
    """Compare each reward with those of all loss tokens of the step: A = (r − mean) / (std + 1e-5).

    A long episode counts more, because each of its tokens counts. Groups play no part, so one of equal rewards is
    trained too. A is exactly 0 in a step of equal rewards.
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
    rewards = rewards.astype(np.float64)
    counted = rewards[num_loss_tokens > 0]
    if not len(counted) or counted.min() == counted.max():
        return np.zeros(len(rewards), np.float32)
    centered = rewards - np.average(rewards, weights=num_loss_tokens)
    variance = np.average(centered**2, weights=num_loss_tokens)
    advantages: np.ndarray = centered / (np.sqrt(variance) + BATCH_EPSILON)
    return advantages.astype(np.float32)
