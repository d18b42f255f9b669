"""What a user writes to add an advantage: one that grows from token to token."""

from typing import ClassVar

import numpy as np

from arl.config.section import Fraction
from arl.train.algorithms.advantage import Advantage, EpisodeColumns


class Growing(Advantage):
    """Token t of n gets the centered reward times discount^(n − 1 − t): what came last gets most of the credit."""

    per = "token"
    columns: ClassVar[tuple[str, ...]] = ()
    smallest_group = 1

    discount: Fraction = 0.5
    """Share of the credit that a token passes on to the one before."""

    def compute(self, episodes: EpisodeColumns) -> np.ndarray:
        centered = episodes.rewards - episodes.rewards.mean()
        credits = [
            reward * self.discount ** np.arange(n)[::-1]
            for reward, n in zip(centered, episodes.num_loss_tokens, strict=True)
        ]
        return np.concatenate(credits)


class OfTheWrongShape(Growing):
    """Declares one number a token, and returns one a trajectory."""

    def compute(self, episodes: EpisodeColumns) -> np.ndarray:
        return episodes.rewards


class WithoutPer(Advantage):
    """Lacks the declaration `per`."""

    columns: ClassVar[tuple[str, ...]] = ()
    smallest_group = 1

    def compute(self, episodes: EpisodeColumns) -> np.ndarray:
        return episodes.rewards
