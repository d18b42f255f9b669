"""Scale the loss of float16 training, so that small gradients do not become 0 and large ones do not overflow.

Every gradient of an update is `value` times as large, and is divided by it before the norm is taken. An update whose
gradient has overflowed is skipped and halves the value; GROWTH_EVERY good ones in a row double it. Micikevicius et al.,
arXiv 1710.03740, §3.2. torch.amp.GradScaler has the same rule and the same numbers. It unscales the gradients of an
optimizer's own parameters and reduces what it finds over no ranks; ours are local shards whose norm is reduced already.
"""

from dataclasses import dataclass

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
