"""Hand out training problems without end: each source in epochs of its own, several sources by their weights.

    source ─► ProblemOrder: a shuffle an epoch ─► does it rest? ─ no ─► MixedOrder: whose turn is it? ─► a problem
                                                       ▲  └─ yes: skipped
                                                       └── learned: the share of right episodes of a group

The mixture follows weights exactly: of the first n problems, a source with the share s has ⌊s·n⌋ or ⌈s·n⌉, for every n.
An order depends on the seed and on what was learned alone, and goes on from its states as if nothing had happened.
"""

import math
import random
from collections.abc import Mapping
from fractions import Fraction

from msgspec import Struct

from arl.config.data_section import Curriculum
from arl.types import Count, Problem


class OrderState(Struct, frozen=True):
    """Hold how far the order of one source is."""

    position: Count = 0  # problems handed out or skipped
    num_skipped: Count = 0
    resting: dict[str, Count] = {}  # id of a problem that is skipped -> the epoch in which it is tried again


class ProblemOrder:
    """Hand out the problems of one source, each epoch in its own deterministic shuffle.

    >>> order = ProblemOrder([Problem("a"), Problem("b")], seed=0)
    >>> sorted(next(order).prompt for _ in range(2))
    ['a', 'b']

    A curriculum never leaves a run without problems: if all of them rest, their epochs pass at once.
    """

    def __init__(
        self, problems: list[Problem], seed: int | str, curriculum: Curriculum | None = None, source: str = ""
    ) -> None:
        assert problems
        self._problems = problems
        self._seed = seed
        self._curriculum = curriculum
        self._source = source
        self._epoch = -1  # that `_shuffled` is of; none yet
        self._shuffled = problems
        self._num_skipped = 0
        self._resting: dict[str, int] = {}  # id -> the epoch in which it is tried again
        self.position = 0  # problems handed out or skipped

    def __iter__(self) -> "ProblemOrder":
        return self

    @property
    def num_given(self) -> int:
        """Return how many problems were handed out."""
        return self.position - self._num_skipped

    @property
    def epochs(self) -> float:
        """Return how many epochs have passed."""
        return self.position / len(self._problems)

    @property
    def num_resting(self) -> int:
        """Return how many problems the curriculum skips in this epoch."""
        return sum(until > self.epochs for until in self._resting.values())

    def __next__(self) -> Problem:
        while True:
            epoch, index = divmod(self.position, len(self._problems))
            if epoch != self._epoch:
                self._epoch = epoch
                self._shuffled = list(self._problems)
                random.Random(f"epoch {epoch} {self._seed}").shuffle(self._shuffled)
            self.position += 1
            problem = self._shuffled[index]
            if not self._resting or self._resting.get(problem.id, 0) <= epoch:
                return problem
            self._num_skipped += 1

    def learned(self, problem: Problem, pass_rate: float) -> None:
        """Note the share of right episodes of a group of this problem.

        A problem that is always or never solved is left out of the next `curriculum.epochs` epochs.
        """
        if self._curriculum is None:
            return
        if self._curriculum.skips(pass_rate):
            self._resting[problem.id] = math.ceil(self.epochs) + self._curriculum.epochs
        else:
            self._resting.pop(problem.id, None)

    def states(self) -> dict[str, OrderState]:
        """Return what a checkpoint keeps, by source."""
        return {self._source: OrderState(self.position, self._num_skipped, dict(self._resting))}

    def restore(self, states: Mapping[str, OrderState]) -> None:
        """Go on from a checkpoint."""
        state = states[self._source]
        self.position = state.position
        self._num_skipped = state.num_skipped
        self._resting = dict(state.resting)

    def metrics(self) -> dict[str, float]:
        """Return what is to be logged of this moment, beside `epochs`."""
        return {} if self._curriculum is None else {"curriculum/skipped": self.num_resting / len(self._problems)}


class MixedOrder:
    """Hand out the problems of several sources by their weights, as a ProblemOrder does those of one.

    Whose turn it is follows from how many problems each has had: the quota method of Balinski and Young (The American
    Mathematical Monthly 82, 1975). Of the sources that have had less than their share of n problems, the n-th is of the
    one with the smallest (count + 1) / share.

    Args:
        orders: of each source.
        weights: of each source; its share is its weight / their sum.
    """

    def __init__(self, orders: Mapping[str, ProblemOrder], weights: Mapping[str, float]) -> None:
        exact = {source: Fraction(str(weights[source])) for source in orders}  # as it is written
        self._orders = orders
        self._shares = {source: weight / sum(exact.values()) for source, weight in exact.items()}

    @property
    def position(self) -> int:
        """Return how many problems were handed out or skipped."""
        return sum(order.position for order in self._orders.values())

    def __next__(self) -> Problem:
        given = {source: order.num_given for source, order in self._orders.items()}
        number = sum(given.values()) + 1
        owed = [source for source, share in self._shares.items() if given[source] < share * number]
        source = min(owed, key=lambda each: (given[each] + 1) / self._shares[each])
        return next(self._orders[source])

    def learned(self, problem: Problem, pass_rate: float) -> None:
        """See ProblemOrder."""
        self._orders[problem.source].learned(problem, pass_rate)

    def states(self) -> dict[str, OrderState]:
        """See ProblemOrder."""
        return {source: state for order in self._orders.values() for source, state in order.states().items()}

    def restore(self, states: Mapping[str, OrderState]) -> None:
        """See ProblemOrder."""
        for order in self._orders.values():
            order.restore(states)

    def metrics(self) -> dict[str, float]:
        """See ProblemOrder."""
        found: dict[str, float] = {}
        for source, order in self._orders.items():
            own = {"epochs": order.epochs, **order.metrics()}
            found |= {f"source/{source}/{name.rpartition('/')[2]}": value for name, value in own.items()}
        return found


Order = ProblemOrder | MixedOrder
