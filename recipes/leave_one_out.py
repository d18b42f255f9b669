"""An advantage of one's own, in the place of the built-in `rloo`; README shows that both train to the same bits."""

import numpy as np

from arl.train.algorithms.advantage import Advantage, EpisodeColumns


class LeaveOneOut(Advantage):
    """Compare each reward with the mean of the others in its group; arXiv 2402.14740."""

    per = "trajectory"
    columns = ()
    smallest_group = 2

    def compute(self, episodes: EpisodeColumns) -> np.ndarray:
        groups = np.split(episodes.rewards, np.cumsum(episodes.group_sizes)[:-1])
        others = np.concatenate([(rewards.sum() - rewards) / (len(rewards) - 1) for rewards in groups])
        advantages: np.ndarray = episodes.rewards - others
        return advantages
