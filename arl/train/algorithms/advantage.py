"""Define the advantage seam: a pure numpy function of rewards, groups and, if it says so, values.

    Batch ─► EpisodeColumns ─► Advantage.compute ─► one number a trajectory, or one a loss token ─► LossSequence

It is computed where its inputs are: on the controller's side, while the batch is packed.
"""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from arl.config.objective_section import AdvantageSection


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeColumns:
    """Hold what an advantage may read of the N episodes of a step, group by group."""

    rewards: np.ndarray  # (N,) float64
    group_sizes: np.ndarray  # (P,) int64, summing to N
    num_loss_tokens: np.ndarray  # (N,) int64, of each episode; they sum to T
    values: np.ndarray | None = None  # (T,) float32, a critic's values, one episode's tokens after the other's


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
