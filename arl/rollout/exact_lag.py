"""Exact lag: every token that step v trains is exactly as old as `rollout.lag` says, however fast anything is.

Step v consumes P groups; group n is one of step v = n // P and has the lag ℓ_n ≤ v. It is sampled by version v − ℓ_n
alone. Engines therefore serve one version at a time. *Wave* u is what version u samples, a slot for each group n with
v_n − ℓ_n = u, all of steps u … u + m for the largest lag m:

    load u ─► admit every slot of wave u ─► all of them finished ─► load the next version that has slots
                        ▲        │
                        └────────┘ failed or rejected: the slot is filled again, by another problem and version u

The trainer runs ahead meanwhile: step v needs only the P groups of step v.

Why this never gets stuck: say that step v waits. Its groups are of waves ≤ v, and so are the versions that engines
must load for them: all of them exist, and every version is published and kept while it is needed (below). A wave ends,
since its slots are finitely many and each is filled in the end, or `max_failures` or `max_rejects` ends the run. So
wave follows wave up to v, all groups of step v are there, and it starts.

Why m + 2 published versions are enough: let u be the newest wave of which any group was admitted. All groups of step
u + m + 1 are of later waves, of which there is nothing yet, so the trainer's version is at most u + m + 1. Engines have
loaded u and load only newer versions from now on: these are among u + 1 … u + m + 1, and with u itself, which a
checkpoint may want, they are m + 2. The newest m + 2 that are published contain all of these that exist.
"""

import heapq
from collections import Counter
from collections.abc import Sequence

import numpy as np


class LagSchedule:
    """Which slots of the current wave are unfilled. O(log(m·P)) per group, O(m·P) per wave.

    Args:
        lags: (steps, P) int, versions: the lag of every group of every step, row v at most v.
    """

    def __init__(self, lags: np.ndarray) -> None:
        self._lags, self._longest = lags, int(lags.max())
        self.problems_per_step = lags.shape[1]
        self.num_trained = 0
        self._outstanding: Counter[int] = Counter()  # deadline -> groups admitted and not yet ended
        self._wave, self._unfilled = 0, self._slots(0)

    @property
    def num_outstanding(self) -> int:
        return self._outstanding.total()

    def is_open(self, loaded_version: int) -> bool:
        """Has the wave of `loaded_version` an unfilled slot?"""
        return bool(self._slots_left(loaded_version))

    def admit(self, loaded_version: int) -> int:
        """Fill a slot; returns the step that will consume it, the earliest one unfilled in this wave."""
        step = heapq.heappop(self._slots_left(loaded_version))
        self._outstanding[step] += 1
        return step

    def restore(self, num_trained: int, loaded_version: int, outstanding: Sequence[tuple[int, int]]) -> None:
        """Go on from a checkpoint: see Admission.

        Earlier waves are full and later ones empty; in this one, what is neither trained nor outstanding is unfilled.
        """
        self.num_trained, self._outstanding = num_trained, Counter(step for _, step in outstanding)
        untrained = Counter(s for s in self._slots(loaded_version) if s >= num_trained // self.problems_per_step)
        filled = Counter(step for wave, step in outstanding if wave == loaded_version)
        assert filled <= untrained, f"wave {loaded_version} has more groups than slots: {filled}, {untrained}"
        self._wave, self._unfilled = loaded_version, sorted((untrained - filled).elements())

    def release(self, deadline: int) -> None:
        """A group failed or was rejected: its slot, which is of this wave, is unfilled again."""
        self._end(deadline)
        heapq.heappush(self._unfilled, deadline)

    def train(self, deadline: int) -> None:
        """A group is consumed by a step."""
        self._end(deadline)
        self.num_trained += 1

    def next_version(self, loaded_version: int, version: int, running: int) -> int | None:
        """Once this wave is full and finished, the next version with slots, or the newest if there is none up to it."""
        if running or self._slots_left(loaded_version) or version <= loaded_version:
            return None
        return next((wave for wave in range(loaded_version + 1, version) if self._slots(wave)), version)

    def first_blocking(self, version: int, chosen: Counter[int]) -> int | None:
        """`version`, unless all of `chosen` are groups of this very step."""
        return None if chosen.keys() == {version} else version

    def _slots_left(self, wave: int) -> list[int]:
        """The steps whose slots in `wave`, the current one or the next, are unfilled: a heap."""
        if wave != self._wave:
            skipped = [u for u in range(self._wave + 1, wave) if self._slots(u)]
            assert not self._unfilled and not skipped, f"wave {wave} before {[self._wave, *skipped]} were full"
            self._wave, self._unfilled = wave, self._slots(wave)
        return self._unfilled

    def _slots(self, wave: int) -> list[int]:
        """The step of every slot of `wave`, in order."""
        rows = self._lags[wave : wave + self._longest + 1]
        steps, _ = np.nonzero(rows == np.arange(len(rows))[:, None])
        return [wave + int(step) for step in steps]

    def _end(self, deadline: int) -> None:
        assert self._outstanding[deadline] > 0
        self._outstanding[deadline] -= 1
        if not self._outstanding[deadline]:
            del self._outstanding[deadline]
