"""Compute the learning rate of every optimizer update, for RL, fine-tuning and the warm-up. Pure; torch-free.

peak ┤      ╭╲           ramp: linear to the peak, in `ramp` updates
     │    ╱    ╲╲        decay: linear or along a cosine, from update `decay_from` to update `last`
  ↑  │  ╱         ╲╲──   after `last`: decay_to · peak
     └────┴────────┴──► update
"""

import math
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

from arl.config.recipe import Train


class Schedule(Struct, frozen=True, kw_only=True):
    """Describes a ramp to the peak and a decay from it; the rate is the peak times the smaller of the two."""

    peak: float
    ramp: int = 0  # updates until the peak is reached
    decay_from: int = 0  # update with the whole peak, the last one before the decay
    last: int  # update at which `decay_to` is reached
    decay_to: float = 1.0  # share of the peak
    decay: Literal["linear", "cosine"] = "linear"

    def rate(self, update: int) -> float:
        """Return the learning rate of update number `update`, counted from 0.

        >>> round(Schedule(peak=1.0, last=4, decay_to=0.5).rate(2), 3)
        0.75
        """
        ramped = (update + 1) / max(1, self.ramp)
        num_decaying = max(1, self.last - self.decay_from)
        done = (update - self.decay_from) / num_decaying
        done = min(1.0, max(0.0, done))
        if self.decay == "cosine":
            done = (1 - math.cos(math.pi * done)) / 2
        decayed = 1 - (1 - self.decay_to) * done
        return self.peak * min(1.0, ramped, decayed)


def schedule_of(train: Train) -> Schedule:
    """Build the schedule of a training run: the decay begins at the peak, and ends with the last step's last update."""
    return Schedule(
        peak=train.learning_rate,
        ramp=train.ramp_steps,
        decay_from=max(0, train.ramp_steps - 1),
        last=train.steps * train.minibatches - 1,
        decay_to=train.decay_to,
        decay=train.decay,
    )


FIRST = 65_536.0
GROWTH_EVERY = 2000  # updates


@dataclass
class LossScale:
    """Hold the scale of the next update. Without float16 it is 1 and stays so."""

    value: float  # a power of two, at least 1
    is_dynamic: bool
    num_good: int = 0  # updates since it last changed

    @classmethod
    def of(cls, dtype: str) -> "LossScale":
        """Return the scale with which a training in `dtype` begins."""
        is_dynamic = dtype == "float16"
        return cls(FIRST if is_dynamic else 1.0, is_dynamic)

    def absorbs(self, is_overflow: bool) -> bool:
        """Return whether a smaller scale may cure the overflow of a gradient."""
        return self.is_dynamic and is_overflow and self.value > 1.0

    def update(self, is_overflow: bool) -> None:
        """Count an update whose gradient has overflowed or has not."""
        if not self.is_dynamic:
            return
        if is_overflow:
            self.value = max(1.0, self.value / 2)
            self.num_good = 0
            return
        self.num_good += 1
        if self.num_good == GROWTH_EVERY:
            self.value *= 2
            self.num_good = 0
