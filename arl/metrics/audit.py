"""Selection bias: do the groups that are trained differ from the groups that were generated?

                ┌► finished ─► waits in the buffer ─► trained
    admitted ─► ┤  (in flight until a step trains it)
                └► lost: failed, rejected or dropped late = dropped

Samples are groups, not episodes: the episodes of one group share its problem, so they are correlated. A group's length
is the mean over its episodes of the tokens sampled so far, for a group lost before its end a lower bound (censored);
a group without any has none. Its reward is the mean over its scored episodes.
"""

import math
from statistics import NormalDist, fmean
from typing import Literal

import msgspec
from msgspec import Struct

from arl.metrics.names import Record
from arl.types import TrajectoryGroup

MIN_GROUPS = 8  # on each side of a comparison: with fewer, the normal approximation means little
SIGNIFICANT = 0.01


class Moments(Struct, frozen=True):
    """Of a stream of numbers, by Welford's update: nothing of the stream is kept."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0  # sum of squared deviations from the mean

    def plus(self, value: float | None) -> "Moments":
        """With one more number; None: with none."""
        if value is None:
            return self
        count = self.count + 1
        mean = self.mean + (value - self.mean) / count
        return Moments(count, mean, self.squares + (value - self.mean) * (value - mean))


class Population(Struct, frozen=True):
    groups: int = 0
    length: Moments = Moments()  # of group means, sampled tokens
    reward: Moments = Moments()  # of group means, where an episode was scored

    def plus(self, group: TrajectoryGroup) -> "Population":
        lengths = [int(t.loss_mask.sum()) for t in group.trajectories]
        rewards = [t.reward for t in group.trajectories if not math.isnan(t.reward)]
        length, reward = fmean(lengths) if any(lengths) else None, fmean(rewards) if rewards else None
        return Population(self.groups + 1, self.length.plus(length), self.reward.plus(reward))


class Selection(Struct, frozen=True):
    """Three populations, since the start of the run. generated − trained − dropped: finished, and not yet trained."""

    generated: Population = Population()  # finished or lost
    trained: Population = Population()
    dropped: Population = Population()  # lost, for whatever reason

    def plus(self, group: TrajectoryGroup, *names: Literal["generated", "trained", "dropped"]) -> "Selection":
        """With `group` in each of the populations `names`."""
        return msgspec.structs.replace(self, **{name: getattr(self, name).plus(group) for name in names})

    def metrics(self, admitted: int) -> Record:
        """audit/*, a mean without a sample left out."""
        means = {
            f"audit/{quantity}_{name}": moments.mean
            for name, population in self.populations().items()
            for quantity, moments in (("length", population.length), ("reward", population.reward))
            if moments.count
        }
        ended = self.trained.groups + self.dropped.groups
        return {"audit/groups_dropped": self.dropped.groups, "audit/groups_in_flight": admitted - ended, **means}

    def populations(self) -> dict[str, Population]:
        return {name: getattr(self, name) for name in self.__struct_fields__}

    def warnings(self) -> list[str]:
        """One line for each significant difference between trained and dropped groups."""
        lines = []
        for quantity in ("length", "reward"):
            trained, dropped = (getattr(population, quantity) for population in (self.trained, self.dropped))
            p = p_value(trained, dropped)
            if min(trained.count, dropped.count) >= MIN_GROUPS and p < SIGNIFICANT:
                means = f"trained {trained.mean:.4g}, dropped {dropped.mean:.4g}"
                lines.append(f"mean {quantity} differs: {means} ({dropped.mean - trained.mean:+.4g}, p = {p:.1g})")
        return lines


def p_value(a: Moments, b: Moments) -> float:
    """Of Welch's t test that both means are equal, two-sided, the t distribution approximated by the normal.

    z = (mean_a − mean_b) / √(s²_a/n_a + s²_b/n_b), p = 2Φ(−|z|)
    """
    if min(a.count, b.count) < 2 or math.isclose(a.mean, b.mean, rel_tol=1e-9, abs_tol=1e-12):
        return 1.0
    error = math.sqrt(sum(m.squares / (m.count - 1) / m.count for m in (a, b)))
    return 2 * NormalDist().cdf(-abs(a.mean - b.mean) / error) if error else 0.0
