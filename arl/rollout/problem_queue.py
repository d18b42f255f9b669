"""Choose the problem of each group: the next one, one that was put back in line, or one of a long round.

ProblemOrder ─► next ─► Attempt ─► a group ─► trained
                 ▲                   │
                 └───── requeue ◄────┘ failed, or abandoned as late: at most `rollout.max_requeues` times

Tail batching (RollPacker, arXiv 2509.21009) is synchronous training that does not wait for every tail, at staleness 0:

    short round: more groups than a step takes ─► the first P that finish ─► step
                         └► the others are set aside: what they have is dropped, their problems wait
    long round, as soon as P problems wait: these problems alone, all of them are waited for ─► step

Round v is sampled by version v, and step v trains it. What is dropped is generated again in a long round, so no problem
is lost, and the ledger shows the price.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence

from msgspec import Struct

from arl.data.problem_order import OrderState, ProblemOrder
from arl.rollout.staleness import StalenessGate
from arl.types import Count, Problem


class Attempt(Struct, frozen=True):
    """Describe one try at a problem; a group is the G episodes of one attempt."""

    problem: Problem
    number: Count  # of the problem in the order of first admission, from 0; a later try keeps it
    requeues: Count = 0  # times that this problem was put back in line before


class ProblemQueue:
    """Give each problem a number at its first admission, and put it back in line a limited number of times.

    Args:
        order: the problems, without end.
        max_requeues: how often one problem is put back; after that it is given up.
    """

    def __init__(self, order: ProblemOrder, max_requeues: int) -> None:
        self.order = order
        self._max_requeues = max_requeues
        self.waiting: deque[Attempt] = deque()  # attempts that were put back
        self.num_problems = 0  # admitted so far: the number of the next new one

    def next(self) -> Attempt:
        """Return the first attempt that waits, or a first attempt at a new problem."""
        if self.waiting:
            return self.waiting.popleft()
        attempt = Attempt(next(self.order), self.num_problems)
        self.num_problems += 1
        return attempt

    def requeue(self, attempt: Attempt) -> bool:
        """Put the problem back in line, before all new ones; return False if it has used up its tries instead."""
        if attempt.requeues >= self._max_requeues:
            return False
        self.waiting.append(Attempt(attempt.problem, attempt.number, attempt.requeues + 1))
        return True

    def oldest(self, open_attempts: Sequence[Attempt]) -> int:
        """Return the number of the oldest problem that waits or is tried, and may still fail or be rejected."""
        numbers = [attempt.number for attempt in (*open_attempts, *self.waiting)]
        return min(numbers, default=self.num_problems)

    def restore(self, order: Mapping[str, OrderState], num_problems: int, waiting: Sequence[Attempt]) -> None:
        """Go on from a checkpoint."""
        self.order.restore(order)
        self.num_problems = num_problems
        self.waiting = deque(waiting)


class TailRounds:
    """Decide which problems a round tries, and how many groups it starts.

    Args:
        problems_per_step: P.
        oversample: groups that a short round starts / P.
    """

    def __init__(self, problems_per_step: int, oversample: float) -> None:
        self.problems_per_step = problems_per_step
        self._oversample = oversample
        self.set_aside: deque[Attempt] = deque()  # attempts that wait for a long round
        self.current = 0  # rounds that are complete: the version that samples the next one
        self.is_long = False

    @property
    def quota(self) -> int:
        """Return how many groups the round has in flight at most: P in a long one, else ⌈oversample · P⌉."""
        if self.is_long:
            return self.problems_per_step
        return math.ceil(self._oversample * self.problems_per_step)

    def next(self) -> Attempt | None:
        """Return what a long round tries next; None: the usual line of problems."""
        return self.set_aside.popleft() if self.is_long and self.set_aside else None

    def end(self, unfinished: Sequence[Attempt]) -> None:
        """End the round, whose P groups have finished, and set the others aside."""
        self.set_aside.extend(unfinished)
        self.current += 1
        self.is_long = len(self.set_aside) >= self.problems_per_step

    def restore(self, num_ended: int, is_long: bool, set_aside: Sequence[Attempt]) -> None:
        """Go on from a checkpoint, at which so many groups had finished."""
        self.current = num_ended // self.problems_per_step
        self.is_long = is_long
        self.set_aside = deque(set_aside)


class TailGate(StalenessGate):
    """Implement Admission at staleness 0, where a round may start more groups than its step takes."""

    def __init__(self, rounds: TailRounds) -> None:
        super().__init__(rounds.problems_per_step, staleness=0)
        self.rounds = rounds

    def is_open(self, loaded_version: int) -> bool:
        """Return whether the round of `loaded_version` goes on, and has room."""
        return loaded_version == self.rounds.current and self.num_outstanding < self.rounds.quota
