"""Hand out problems to try, first those that were put back in line.

ProblemOrder ─► next ─► Attempt ─► a group ─► trained
                 ▲                   │
                 └───── requeue ◄────┘ failed, or abandoned as late: at most `rollout.max_requeues` times
"""

from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from arl.data.problems import ProblemOrder
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
        self._order = order
        self._max_requeues = max_requeues
        self._waiting: deque[Attempt] = deque()
        self.num_problems = 0  # admitted so far: the number of the next new one

    @property
    def waiting(self) -> tuple[Attempt, ...]:
        """Return the attempts that were put back, in line."""
        return tuple(self._waiting)

    @property
    def position(self) -> int:
        """Return the place in the order of problems."""
        return self._order.position

    def next(self) -> Attempt:
        """Return the first attempt that waits, or a first attempt at a new problem."""
        if self._waiting:
            return self._waiting.popleft()
        attempt = Attempt(next(self._order), self.num_problems)
        self.num_problems += 1
        return attempt

    def requeue(self, attempt: Attempt) -> bool:
        """Put the problem back in line, before all new ones; return False if it has used up its tries instead."""
        if attempt.requeues >= self._max_requeues:
            return False
        self._waiting.append(Attempt(attempt.problem, attempt.number, attempt.requeues + 1))
        return True

    def oldest(self, open_attempts: Sequence[Attempt]) -> int:
        """Return the number of the oldest problem that waits or is tried, and may still fail or be rejected."""
        numbers = [attempt.number for attempt in (*open_attempts, *self._waiting)]
        return min(numbers, default=self.num_problems)

    def restore(self, position: int, num_problems: int, waiting: Sequence[Attempt]) -> None:
        """Go on from a checkpoint."""
        self._order.restore(position)
        self.num_problems = num_problems
        self._waiting = deque(waiting)
