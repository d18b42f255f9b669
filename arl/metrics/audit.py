"""Compare the groups that are trained with the groups that were generated, to find out whether training selects.

                ┌► finished ─► waits in the buffer ─► trained
    admitted ─► ┤  (in flight until a step trains it)
                ├► rejected by the filter or the env: a selection that the recipe intends
                ├► failed: an episode raised
                └► dropped: abandoned as late, or unusable in a replay. an unintended selection

Only a difference between trained and dropped groups is a warning. The effect of a filter is shown apart, because the
recipe asks for it.

Samples are groups, not episodes: the episodes of one group share its problem, so they are correlated. A group's length
is the mean over its episodes of the tokens sampled so far. For a group that was lost before its end it is a lower
bound; a group without any token has none. A group's reward is the mean over its scored episodes.
"""

import math
from statistics import NormalDist, fmean

from msgspec import Struct, field, structs

from arl.metrics.names import Record
from arl.types import REJECTED, TrajectoryGroup

MIN_GROUPS = 8  # on each side of a comparison: with fewer, the normal approximation means little
SIGNIFICANT = 0.01


class Moments(Struct):
    """Hold count, mean and spread of a stream of numbers, by Welford's update, without the stream itself."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0  # sum of squared deviations from the mean

    def add(self, value: float) -> None:
        """Count one more number."""
        deviation = value - self.mean
        self.count += 1
        self.mean += deviation / self.count
        self.squares += deviation * (value - self.mean)


class Population(Struct):
    """Hold the moments of groups of one kind."""

    groups: int = 0
    length: Moments = field(default_factory=Moments)  # of group means, sampled tokens
    reward: Moments = field(default_factory=Moments)  # of group means, where an episode was scored
    tokens: int = 0  # sampled

    def add(self, group: TrajectoryGroup) -> None:
        """Count one more group."""
        lengths = [sum(branch.num_sampled for branch in episode) for episode in group.episodes]
        rewards = [first.reward for first, *_ in group.episodes if not math.isnan(first.reward)]
        self.groups += 1
        self.tokens += sum(lengths)
        if any(lengths):
            self.length.add(fmean(lengths))
        if rewards:
            self.reward.add(fmean(rewards))


class Selection(Struct):
    """Hold five populations, counted since the start of the run.

    generated = trained + rejected + failed + dropped + finished and not yet trained.
    """

    generated: Population = field(default_factory=Population)  # ended: finished or lost
    trained: Population = field(default_factory=Population)
    rejected: Population = field(default_factory=Population)  # by rollout.filter or the env: intended
    failed: Population = field(default_factory=Population)
    dropped: Population = field(default_factory=Population)  # as late, or unusable in a replay: not intended

    def add_lost(self, group: TrajectoryGroup, fate: str) -> None:
        """Count a group that ended and will never be trained."""
        self.generated.add(group)
        if fate.startswith("failed"):
            self.failed.add(group)
        elif fate == REJECTED:
            self.rejected.add(group)
        else:
            self.dropped.add(group)

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
        lost = (self.rejected, self.failed, self.dropped)
        in_buffer = self.generated.tokens - self.trained.tokens - sum(population.tokens for population in lost)
        record: Record = {
            "groups/failed": self.failed.groups,
            "groups/rejected": self.rejected.groups,
            "groups/dropped": self.dropped.groups,
            "audit/groups_in_flight": admitted - self.trained.groups - self.num_lost,
        }
        for name, population in self.populations().items():
            record[f"audit/tokens_{name}"] = population.tokens
            if population.length.count:
                record[f"audit/length_{name}"] = population.length.mean
            if population.reward.count:
                record[f"audit/reward_{name}"] = population.reward.mean
        record["audit/tokens_dropped"] = self.dropped.tokens + restarted_tokens
        record["audit/tokens_generated"] = self.generated.tokens + open_tokens + restarted_tokens
        record["audit/tokens_in_flight"] = in_buffer + open_tokens
        return record

    def populations(self) -> dict[str, Population]:
        """Return the populations by name."""
        return structs.asdict(self)

    def warnings(self) -> list[str]:
        """Write one line for each significant difference between trained and dropped groups."""
        found = []
        for quantity in ("length", "reward"):
            trained: Moments = getattr(self.trained, quantity)
            dropped: Moments = getattr(self.dropped, quantity)
            if min(trained.count, dropped.count) < MIN_GROUPS:
                continue
            p = p_value(trained, dropped)
            if p < SIGNIFICANT:
                means = f"trained {trained.mean:.4g}, dropped {dropped.mean:.4g}"
                found.append(f"mean {quantity} differs: {means} ({dropped.mean - trained.mean:+.4g}, p = {p:.1g})")
        return found


def p_value(a: Moments, b: Moments) -> float:
    """Test that both means are equal: Welch's t test, two-sided, with the t distribution approximated by the normal.

    z = (mean_a − mean_b) / √(s²_a/n_a + s²_b/n_b), p = 2Φ(−|z|)
    """
    if math.isclose(a.mean, b.mean, rel_tol=1e-9, abs_tol=1e-12):
        return 1.0
    error = math.sqrt(sum(m.squares / (m.count - 1) / m.count for m in (a, b)))  # m.squares/(n − 1) is the variance
    return 2 * NormalDist().cdf(-abs(a.mean - b.mean) / error) if error else 0.0
