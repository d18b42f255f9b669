"""Keep an exact lag: every token that step v trains is exactly as old as `rollout.lag` says, at any speed.

Step v consumes P groups. Group n belongs to step v = n // P and has the lag ℓ_n ≤ v. Only version v − ℓ_n samples it.
Engines therefore serve one version at a time. *Wave* u is what version u samples: a slot for each group n with
v_n − ℓ_n = u. These groups belong to steps u … u + m for the largest lag m:

    load u ─► admit every slot of wave u ─► all of them finished ─► load the next version that has slots
                        ▲        │
                        └────────┘ failed or rejected: the slot is filled again, by another problem and version u

The trainer runs ahead meanwhile: step v needs only the P groups of step v.

Why this never gets stuck: say that step v waits. Its groups are of waves ≤ v, and so are the versions that engines
must load for them: all of them exist, and every version is published and kept while it is needed (below). A wave ends,
since its slots are finitely many and each is filled in the end, or the limit on failed or rejected problems ends the
run. So wave follows wave up to v, all groups of step v are there, and it starts.

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
    """Implement Admission by tracking the unfilled slots of the current wave. O(log(m·P)) per group, O(m·P) per wave.

    Args:
        lags: (steps, P) int, versions: the lag of every group of every step, row v at most v.
    """

    def __init__(self, lags: np.ndarray) -> None:
        self._lags = lags
        self._longest = int(lags.max())
        self.problems_per_step = lags.shape[1]
        self.num_trained = 0
        self._outstanding: Counter[int] = Counter()  # deadline -> groups admitted and not yet ended
        self._wave = 0
        self._unfilled = self._slots(0)

    @property
    def num_outstanding(self) -> int:
        """Return the number of groups that were admitted, and are neither trained nor lost."""
        return self._outstanding.total()

    def is_open(self, loaded_version: int) -> bool:
        """Return whether the wave of `loaded_version` has an unfilled slot."""
        return bool(self._slots_left(loaded_version))

    def admit(self, loaded_version: int) -> int:
        """Fill the slot of the earliest step that is unfilled in this wave, and return that step."""
        step = heapq.heappop(self._slots_left(loaded_version))
        self._outstanding[step] += 1
        return step

    def restore(self, num_trained: int, loaded_version: int, outstanding: Sequence[tuple[int, int]]) -> None:
        """Go on from a checkpoint: see Admission.

        Earlier waves are full and later ones empty. In this one, what is neither trained nor outstanding is unfilled.
        """
        self.num_trained = num_trained
        self._outstanding = Counter(step for _, step in outstanding)
        next_step = num_trained // self.problems_per_step
        slots = self._slots(loaded_version)
        untrained = Counter(step for step in slots if step >= next_step)
        filled = Counter(step for wave, step in outstanding if wave == loaded_version)
        assert filled <= untrained, f"wave {loaded_version} has more groups than slots: {filled}, {untrained}"
        unfilled = untrained - filled
        self._wave = loaded_version
        self._unfilled = sorted(unfilled.elements())  # sorted, and so a heap

    def release(self, deadline: int) -> None:
        """Empty the slot of a group that failed or was rejected. It belongs to this wave."""
        self._end(deadline)
        heapq.heappush(self._unfilled, deadline)

    def train(self, deadline: int) -> None:
        """Count a group that a step consumes."""
        self._end(deadline)
        self.num_trained += 1

    def next_version(self, loaded_version: int, version: int, running: int) -> int | None:
        """Choose the next version with slots once this wave is full and finished; the newest, if none has any."""
        if running or self._slots_left(loaded_version) or version <= loaded_version:
            return None
        for wave in range(loaded_version + 1, version):
            if self._slots(wave):
                return wave
        return version

    def first_blocking(self, version: int, chosen: Counter[int]) -> int | None:
        """Return `version`, unless all of `chosen` belong to this very step."""
        if chosen.keys() == {version}:
            return None
        return version

    def _slots_left(self, wave: int) -> list[int]:
        """Return the heap of steps with unfilled slots in `wave`, which is the current wave or the next one."""
        if wave != self._wave:
            between = range(self._wave + 1, wave)
            skipped = [other for other in between if self._slots(other)]
            assert not self._unfilled, f"wave {wave} begins before wave {self._wave} is full"
            assert not skipped, f"wave {wave} begins before the waves {skipped}"
            self._wave = wave
            self._unfilled = self._slots(wave)
        return self._unfilled

    def _slots(self, wave: int) -> list[int]:
        """List the step of every slot of `wave`, in order."""
        last_step = wave + self._longest
        lags = self._lags[wave : last_step + 1]
        lags_of_this_wave = np.arange(len(lags))  # row i is of step wave + i, for which this wave has the lag i
        rows, _ = np.nonzero(lags == lags_of_this_wave[:, None])
        return [wave + int(row) for row in rows]

    def _end(self, deadline: int) -> None:
        assert self._outstanding[deadline] > 0
        self._outstanding[deadline] -= 1
        if not self._outstanding[deadline]:
            del self._outstanding[deadline]
