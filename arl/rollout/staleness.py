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

from collections import Counter
from collections.abc import Sequence


class StalenessGate:
    """Implement Admission by counting outstanding groups by deadline. O(1) per group, O(η) per step."""

    def __init__(self, problems_per_step: int, staleness: int) -> None:
        self.problems_per_step = problems_per_step
        self.staleness = staleness
        self.num_trained = 0
        self.num_outstanding = 0
        self._outstanding: Counter[int] = Counter()  # deadline -> groups admitted and not yet ended

    def is_open(self, loaded_version: int) -> bool:
        """Return whether one more group may start while the engines serve `loaded_version`."""
        already = self.num_trained + self.num_outstanding  # N − 1
        return already // self.problems_per_step <= loaded_version + self.staleness

    def admit(self, loaded_version: int) -> int:
        """Count one group in, and return its deadline: the last version that may train it."""
        assert self.is_open(loaded_version)
        deadline = loaded_version + self.staleness
        self._outstanding[deadline] += 1
        self.num_outstanding += 1
        return deadline

    def restore(self, num_trained: int, loaded_version: int, outstanding: Sequence[tuple[int, int]]) -> None:
        """Go on from a checkpoint: see Admission."""
        del loaded_version
        self.num_trained = num_trained
        self.num_outstanding = len(outstanding)
        self._outstanding = Counter(deadline for _, deadline in outstanding)

    def release(self, deadline: int) -> None:
        """Give back the number of a group that failed, was rejected or dropped."""
        assert self._outstanding[deadline] > 0
        self._outstanding[deadline] -= 1
        self.num_outstanding -= 1
        if not self._outstanding[deadline]:
            del self._outstanding[deadline]

    def train(self, deadline: int) -> None:
        """Count a group that a step consumes."""
        self.release(deadline)
        self.num_trained += 1

    def next_version(self, loaded_version: int, version: int, running: int) -> int | None:
        """Choose the trainer's newest version, whatever is running; None: the engines have it."""
        del running
        return version if version > loaded_version else None

    def first_blocking(self, version: int, chosen: Counter[int]) -> int | None:
        """Find the first deadline d whose inequality step `version` would break by consuming `chosen`.

        Args:
            version: v, the trainer's version before the step.
            chosen: how many groups of each deadline the step would consume.

        Returns:
            The deadline; None: the step may start.
        """
        remaining = 0
        for deadline in sorted(self._outstanding):
            remaining += self._outstanding[deadline] - chosen[deadline]
            later_steps = deadline - version
            if remaining > later_steps * self.problems_per_step:
                return deadline
        return None
