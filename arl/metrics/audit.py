"""Compare the groups that are trained with the groups that were generated, to find out whether training selects.

                ┌► finished ─► waits in the buffer ─► trained
    admitted ─► ┤  (in flight until a step trains it)
                ├► rejected by the filter or the env: a selection that the recipe intends
                ├► failed: an episode raised
                └► dropped: abandoned as late, or unusable in a replay. A selection that nobody intends

Only a difference between trained and dropped groups is a warning. The effect of a filter is shown apart, because the
recipe asks for it.

Samples are groups, not episodes: the episodes of one group share its problem, so they are correlated. A group's length
is the mean over its episodes of the tokens sampled so far. For a group that was lost before its end it is a lower
bound; a group without any token has none. A group's reward is the mean over its scored episodes.
"""

import math
from statistics import NormalDist, fmean
from typing import Literal

import msgspec
from msgspec import Struct

from arl.metrics.names import Record
from arl.types import REJECTED, TrajectoryGroup

MIN_GROUPS = 8  # on each side of a comparison: with fewer, the normal approximation means little
SIGNIFICANT = 0.01

Loss = Literal["failed", "rejected", "dropped"]


def loss_of(fate: str) -> Loss:
    """Return the kind of loss that a fate is."""
    if fate.startswith("failed"):
        return "failed"
    return "rejected" if fate == REJECTED else "dropped"


class Moments(Struct, frozen=True):
    """Hold count, mean and spread of a stream of numbers, by Welford's update, without the stream itself."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0  # sum of squared deviations from the mean

    def plus(self, value: float | None) -> "Moments":
        """Return the moments with one more number; None adds none."""
        if value is None:
            return self
        count = self.count + 1
        mean = self.mean + (value - self.mean) / count
        squares = self.squares + (value - self.mean) * (value - mean)
        return Moments(count, mean, squares)


class Population(Struct, frozen=True):
    """Hold the moments of groups of one kind."""

    groups: int = 0
    length: Moments = Moments()  # of group means, sampled tokens
    reward: Moments = Moments()  # of group means, where an episode was scored
    tokens: int = 0  # sampled

    def plus(self, group: TrajectoryGroup) -> "Population":
        """Return the population with one more group."""
        lengths = [t.num_sampled for t in group.trajectories]
        rewards = [t.reward for t in group.trajectories if not math.isnan(t.reward)]
        length = fmean(lengths) if any(lengths) else None
        reward = fmean(rewards) if rewards else None
        return Population(
            groups=self.groups + 1,
            tokens=self.tokens + sum(lengths),
            length=self.length.plus(length),
            reward=self.reward.plus(reward),
        )


class Selection(Struct, frozen=True):
    """Hold five populations, counted since the start of the run.

    generated = trained + rejected + failed + dropped + finished and not yet trained.
    """

    generated: Population = Population()  # ended: finished or lost
    trained: Population = Population()
    rejected: Population = Population()  # by rollout.filter or the env: intended
    failed: Population = Population()
    dropped: Population = Population()  # abandoned as late, or unusable in a replay: not intended

    def finished(self, group: TrajectoryGroup) -> "Selection":
        """Return the selection after `group` has finished."""
        return msgspec.structs.replace(self, generated=self.generated.plus(group))

    def trained_on(self, group: TrajectoryGroup) -> "Selection":
        """Return the selection after a step has consumed `group`, which had finished."""
        return msgspec.structs.replace(self, trained=self.trained.plus(group))

    def lost(self, group: TrajectoryGroup, fate: str) -> "Selection":
        """Return the selection after `group` was lost."""
        name = loss_of(fate)
        return msgspec.structs.replace(self.finished(group), **{name: getattr(self, name).plus(group)})

    @property
    def num_lost(self) -> int:
        """Return how many groups will never be trained."""
        return self.rejected.groups + self.failed.groups + self.dropped.groups

    def metrics(self, admitted: int, open_tokens: int, restarted_tokens: int) -> Record:
        """Compute groups/… and audit/…; a mean without a sample is left out.

        Args:
            admitted: groups since the start of the run.
            open_tokens: sampled by the ended episodes of groups that still run.
            restarted_tokens: of ended episodes that a resumed run began anew: dropped, although their groups go on.
        """
        lost_tokens = self.rejected.tokens + self.failed.tokens + self.dropped.tokens
        finished_tokens = self.generated.tokens - self.trained.tokens - lost_tokens  # in the buffer
        record: Record = {
            "groups/failed": self.failed.groups,
            "groups/rejected": self.rejected.groups,
            "groups/dropped": self.dropped.groups,
            "audit/groups_in_flight": admitted - self.trained.groups - self.num_lost,
        }
        for name, population in self.populations().items():
            record[f"audit/tokens_{name}"] = population.tokens
        record["audit/tokens_dropped"] = self.dropped.tokens + restarted_tokens
        record["audit/tokens_generated"] = self.generated.tokens + open_tokens + restarted_tokens
        record["audit/tokens_in_flight"] = finished_tokens + open_tokens
        for name, population in self.populations().items():
            if population.length.count:
                record[f"audit/length_{name}"] = population.length.mean
            if population.reward.count:
                record[f"audit/reward_{name}"] = population.reward.mean
        return record

    def populations(self) -> dict[str, Population]:
        """Return the populations by name."""
        return {name: getattr(self, name) for name in self.__struct_fields__}

    def warnings(self) -> list[str]:
        """Write one line for each significant difference between trained and dropped groups."""
        lengths = _difference("length", self.trained.length, self.dropped.length)
        rewards = _difference("reward", self.trained.reward, self.dropped.reward)
        return lengths + rewards


def _difference(quantity: str, trained: Moments, dropped: Moments) -> list[str]:
    """Write a line if two means differ significantly; none otherwise."""
    if min(trained.count, dropped.count) < MIN_GROUPS:
        return []
    if (p := p_value(trained, dropped)) >= SIGNIFICANT:
        return []
    means = f"trained {trained.mean:.4g}, dropped {dropped.mean:.4g}"
    return [f"mean {quantity} differs: {means} ({dropped.mean - trained.mean:+.4g}, p = {p:.1g})"]


def p_value(a: Moments, b: Moments) -> float:
    """Test that both means are equal: Welch's t test, two-sided, with the t distribution approximated by the normal.

    z = (mean_a − mean_b) / √(s²_a/n_a + s²_b/n_b), p = 2Φ(−|z|)
    """
    if min(a.count, b.count) < 2:
        return 1.0
    if math.isclose(a.mean, b.mean, rel_tol=1e-9, abs_tol=1e-12):
        return 1.0
    error = math.sqrt(sum(m.squares / (m.count - 1) / m.count for m in (a, b)))  # m.squares/(n − 1) is the variance
    return 2 * NormalDist().cdf(-abs(a.mean - b.mean) / error) if error else 0.0
