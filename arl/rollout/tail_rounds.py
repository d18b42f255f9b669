"""Set long answers aside and batch them: synchronous training that does not wait for every tail.

    short round: more groups than a step takes ─► the first P that finish ─► step
                         └► the others are set aside: what they have is dropped, their problems wait
    long round, as soon as P problems wait: these problems alone, all of them are waited for ─► step

This is the tail batching of RollPacker (arXiv 2509.21009), for staleness 0: round v is sampled by version v, and step v
trains it. What is dropped is generated again in a long round, so no problem is lost, and the ledger shows the price.
"""

import math
from collections import deque
from collections.abc import Sequence

from arl.rollout.problem_queue import Attempt
from arl.rollout.staleness import StalenessGate


class TailRounds:
    """Decide which problems a round tries, and how many groups it starts.

    Args:
        problems_per_step: P.
        oversample: groups that a short round starts / P.
    """

    def __init__(self, problems_per_step: int, oversample: float) -> None:
        self.problems_per_step = problems_per_step
        self._oversample = oversample
        self._set_aside: deque[Attempt] = deque()
        self.current = 0  # rounds that are complete: the version that samples the next one
        self.is_long = False

    @property
    def set_aside(self) -> tuple[Attempt, ...]:
        """Return the attempts that wait for a long round."""
        return tuple(self._set_aside)

    @property
    def quota(self) -> int:
        """Return how many groups the round has in flight at most: P in a long one, else ⌈oversample · P⌉."""
        if self.is_long:
            return self.problems_per_step
        return math.ceil(self._oversample * self.problems_per_step)

    def next(self) -> Attempt | None:
        """Return what a long round tries next; None: the usual line of problems."""
        return self._set_aside.popleft() if self.is_long and self._set_aside else None

    def end(self, unfinished: Sequence[Attempt]) -> None:
        """End the round, whose P groups have finished, and set the others aside."""
        self._set_aside.extend(unfinished)
        self.current += 1
        self.is_long = len(self._set_aside) >= self.problems_per_step

    def restore(self, num_ended: int, is_long: bool, set_aside: Sequence[Attempt]) -> None:
        """Go on from a checkpoint, at which so many groups had finished."""
        self.current = num_ended // self.problems_per_step
        self.is_long = is_long
        self._set_aside = deque(set_aside)


class TailGate(StalenessGate):
    """Implement Admission at staleness 0, where a round may start more groups than its step takes."""

    def __init__(self, rounds: TailRounds) -> None:
        super().__init__(rounds.problems_per_step, staleness=0)
        self.rounds = rounds

    def is_open(self, loaded_version: int) -> bool:
        """Return whether the round of `loaded_version` goes on, and has room."""
        return loaded_version == self.rounds.current and self.num_outstanding < self.rounds.quota
