"""Hand out training problems without end: each source in epochs of its own, several sources by their weights.

    whose turn is it? ─► a source: a shuffle an epoch ─► does it rest? ─ no ─► a problem
                                          ▲                └─ yes: skipped
                                          └── learned: the share of right episodes of a group

The mixture follows weights exactly: of the first n problems, a source with the share s has ⌊s·n⌋ or ⌈s·n⌉, for every n.
An order depends on the seed and on what was learned alone, and goes on from its states as if nothing had happened.
"""

import copy
import math
import random
from collections.abc import Mapping, Sequence
from fractions import Fraction

from msgspec import Struct

from arl.types import Count, Problem


class OrderState(Struct):
    """Hold how far one source is."""

    position: Count = 0  # problems handed out or skipped
    num_skipped: Count = 0
    resting: dict[str, Count] = {}  # id of a problem that is skipped -> the epoch in which it is tried again


class _Source:
    """Hand out the problems of one source, each epoch in its own deterministic shuffle.

    A curriculum never leaves a run without problems: if all of them rest, their epochs pass at once.
    """

    def __init__(self, problems: list[Problem], seed: str) -> None:
        assert problems
        self._problems = problems
        self._seed = seed
        self._epoch = -1  # that `_shuffled` is of; none yet
        self._shuffled = problems
        self.state = OrderState()

    @property
    def epochs(self) -> float:
        """Return how many epochs have passed."""
        return self.state.position / len(self._problems)

    @property
    def share_resting(self) -> float:
        """Return the share of problems that are skipped in this epoch."""
        return sum(until > self.epochs for until in self.state.resting.values()) / len(self._problems)

    def __next__(self) -> Problem:
        state = self.state
        while True:
            epoch, index = divmod(state.position, len(self._problems))
            if epoch != self._epoch:
                self._epoch = epoch
                self._shuffled = list(self._problems)
                random.Random(f"epoch {epoch} {self._seed}").shuffle(self._shuffled)
            state.position += 1
            problem = self._shuffled[index]
            if not state.resting or state.resting.get(problem.id, 0) <= epoch:
                return problem
            state.num_skipped += 1


class ProblemOrder:
    """Hand out the problems of all sources.

    >>> order = ProblemOrder([Problem("a"), Problem("b")], seed=0)
    >>> sorted(next(order).prompt for _ in range(2))
    ['a', 'b']

    Whose turn it is follows from how many problems each has had: the quota method of Balinski and Young (The American
    Mathematical Monthly 82, 1975). Of the sources that have had less than their share of n problems, the n-th is of the
    one with the smallest (count + 1) / share.

    Args:
        weights: of each source; its share is its weight / their sum.
        curricula: of sources with a curriculum: for how many epochs a problem is skipped.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        seed: int,
        weights: Mapping[str, float] = {"": 1.0},
        curricula: Mapping[str, int] = {},
    ) -> None:
        exact = {source: Fraction(str(weight)) for source, weight in weights.items()}  # as it is written
        self._shares = {source: weight / sum(exact.values()) for source, weight in exact.items()}
        self._curricula = curricula
        self._sources = {
            source: _Source([problem for problem in problems if problem.source == source], f"{seed} {source}".strip())
            for source in weights
        }

    @property
    def position(self) -> int:
        """Return how many problems were handed out or skipped."""
        return sum(source.state.position for source in self._sources.values())

    def __next__(self) -> Problem:
        given = {name: source.state.position - source.state.num_skipped for name, source in self._sources.items()}
        number = sum(given.values()) + 1
        owed = [source for source, share in self._shares.items() if given[source] < share * number]
        return next(self._sources[min(owed, key=lambda each: (given[each] + 1) / self._shares[each])])

    def learned(self, problem: Problem, pass_rate: float) -> None:
        """Note the share of right episodes of a group: a problem that is always or never solved rests for a while."""
        if problem.source not in self._curricula:
            return
        source = self._sources[problem.source]
        if pass_rate in (0.0, 1.0):
            source.state.resting[problem.id] = math.ceil(source.epochs) + self._curricula[problem.source]
        else:
            source.state.resting.pop(problem.id, None)

    def states(self) -> dict[str, OrderState]:
        """Return what a checkpoint keeps, by source."""
        return {name: copy.deepcopy(source.state) for name, source in self._sources.items()}

    def restore(self, states: Mapping[str, OrderState]) -> None:
        """Go on from a checkpoint."""
        for name, source in self._sources.items():
            source.state = copy.deepcopy(states[name])

    def metrics(self) -> dict[str, float]:
        """Return what is to be logged of this moment, beside the epochs of all."""
        found: dict[str, float] = {}
        for name, source in self._sources.items():
            if name:
                found[f"source/{name}/epochs"] = source.epochs
            if name in self._curricula:
                found[f"source/{name}/skipped" if name else "curriculum/skipped"] = source.share_resting
        return found
