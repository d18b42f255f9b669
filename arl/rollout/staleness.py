"""Bound staleness: decide which groups may start, and which must be trained before they grow too old.

A group admitted while the engines serve `loaded_version` holds no token older than that version, so its deadline
is loaded_version + η: trained at version v ≤ deadline, no token of it is older than η.

Admission.    Group number N, counting itself among all groups trained or outstanding, starts only if
              ⌊(N−1)/P⌋ ≤ loaded_version + η, that is N ≤ (deadline+1)·P.
Consumption.  Step v takes the P finished groups of earliest deadline, and starts only if for every d ≥ v at most
              (d−v)·P groups with deadline ≤ d remain outstanding afterwards.

Why this never gets stuck: deadlines never decrease in admission order, so whenever a group of deadline d is admitted
at version v all outstanding groups have deadlines ≤ d and number at most (d+1)·P − v·P = (d−v+1)·P: exactly what the
steps v..d can consume. The consumption rule hands the same inequality on to v+1.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence


class Admission(ABC):
    """Decide what may start, and what must be trained when. Counts outstanding groups by deadline, O(1) per group.

    A group is outstanding from its admission until it is trained or lost. Its deadline is the last version that may
    train it.
    """

    def __init__(self, problems_per_step: int) -> None:
        self.problems_per_step = problems_per_step
        self.num_trained = 0
        self.num_outstanding = 0
        self._outstanding: Counter[int] = Counter()  # deadline -> groups

    @abstractmethod
    def is_open(self, loaded_version: int) -> bool:
        """Return whether one more group may start while the engines serve `loaded_version`."""

    @abstractmethod
    def admit(self, loaded_version: int) -> int:
        """Count one group in, and return its deadline."""

    @abstractmethod
    def first_blocking(self, version: int, chosen: Counter[int]) -> int | None:
        """Find why step `version` may not consume `chosen` (deadline -> groups).

        Returns:
            The deadline by which too many groups would remain; None: the step may start.
        """

    @abstractmethod
    def next_version(self, loaded_version: int, version: int, running: int) -> int | None:
        """Choose what engines at `loaded_version` load next.

        Args:
            version: the trainer's.
            running: groups whose episodes run.

        Returns:
            The version; None: nothing yet.
        """

    def release(self, deadline: int) -> None:
        """Give back the number of a group that failed, was rejected or dropped."""
        self._end(deadline)

    def train(self, deadline: int) -> None:
        """Count a group that a step consumes."""
        self._end(deadline)
        self.num_trained += 1

    def restore(self, num_trained: int, loaded_version: int, outstanding: Sequence[tuple[int, int]]) -> None:
        """Go on from a checkpoint.

        Args:
            num_trained: groups so far.
            loaded_version: what the engines go on with.
            outstanding: (dispatch_version, deadline) of each outstanding group.
        """
        del loaded_version
        self.num_trained = num_trained
        self.num_outstanding = len(outstanding)
        self._outstanding = Counter(deadline for _, deadline in outstanding)

    def _begin(self, deadline: int) -> int:
        self._outstanding[deadline] += 1
        self.num_outstanding += 1
        return deadline

    def _end(self, deadline: int) -> None:
        assert self._outstanding[deadline] > 0
        self._outstanding[deadline] -= 1
        self.num_outstanding -= 1
        if not self._outstanding[deadline]:
            del self._outstanding[deadline]


class StalenessGate(Admission):
    """Keep the two rules above. O(η) per step.

    Args:
        every: versions from one load to the next, at most η + 1: the trainer gets that far ahead of the engines.
    """

    def __init__(self, problems_per_step: int, staleness: int, every: int = 1) -> None:
        super().__init__(problems_per_step)
        self.staleness = staleness
        self.every = every

    def is_open(self, loaded_version: int) -> bool:
        already = self.num_trained + self.num_outstanding  # N − 1
        return already // self.problems_per_step <= loaded_version + self.staleness

    def admit(self, loaded_version: int) -> int:
        assert self.is_open(loaded_version)
        return self._begin(loaded_version + self.staleness)

    def next_version(self, loaded_version: int, version: int, running: int) -> int | None:
        """Choose the trainer's newest version, whatever is running."""
        del running
        return version if version >= loaded_version + self.every else None

    def first_blocking(self, version: int, chosen: Counter[int]) -> int | None:
        remaining = 0
        for deadline in sorted(self._outstanding):
            remaining += self._outstanding[deadline] - chosen[deadline]
            later_steps = deadline - version
            if remaining > later_steps * self.problems_per_step:
                return deadline
        return None
