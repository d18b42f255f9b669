"""Shape the rewards of training episodes. Pure functions of a reward and of how long its response is.

    shaped = clip((raw + bias) · scale, low, high) + overlong penalty

Scale, bias and clip are those of AReaL (arXiv 2505.24298), whose math recipes use bias −0.5, scale 10 and clip 20. The
penalty is DAPO's (arXiv 2503.14476, equation 13). An evaluation never shapes.
"""

import math
from collections.abc import Sequence

from msgspec import Struct

from arl.config.reward_section import Reward
from arl.types import Response


def scaled(raw: float, *, scale: float, bias: float, low: float, high: float) -> float:
    """Return clip((raw + bias) · scale, low, high).

    >>> scaled(1.0, scale=10.0, bias=-0.5, low=-20.0, high=20.0)
    5.0
    """
    assert low < high, "the recipe has checked it"
    return min(max((raw + bias) * scale, low), high)


def overlong_penalty(num_tokens: int, *, budget: int, buffer: int, penalty: float) -> float:
    """Return DAPO's soft penalty of long responses, in [−penalty, 0]; arXiv 2503.14476, equation 13.

    0 up to budget − buffer tokens, then falling linearly, to −penalty at the whole budget:

        penalty · (budget − buffer − num_tokens) / buffer

    >>> [overlong_penalty(n, budget=100, buffer=20, penalty=1.0) for n in (80, 85, 100)]
    [0.0, -0.25, -1.0]
    """
    assert 0 < buffer < budget, "the recipe has checked it"
    over = num_tokens - (budget - buffer)
    share = min(max(over / buffer, 0.0), 1.0)
    return -penalty * share if share else 0.0


class Shaping(Struct, frozen=True, kw_only=True):
    """Hold how the rewards of training episodes are shaped."""

    scale: float = 1.0
    bias: float = 0.0
    low: float = -math.inf
    high: float = math.inf
    buffer: int | None = None  # tokens before the budget in which the penalty grows; None: no penalty
    penalty: float = 1.0  # at the whole budget
    mask_truncated: bool = False

    @classmethod
    def of(cls, section: Reward) -> "Shaping":
        """Read the shaping from the recipe's section."""
        clip: Sequence[float] = section.clip or (-math.inf, math.inf)
        overlong = section.overlong
        return cls(
            scale=section.scale,
            bias=section.bias,
            low=clip[0],
            high=clip[1],
            buffer=None if overlong is None else overlong.buffer,
            penalty=1.0 if overlong is None else overlong.penalty,
            mask_truncated=section.mask_truncated,
        )

    def shape(self, raw: float, response: Response) -> float:
        """Return the reward that training learns from.

        An episode without a grade has the raw reward 0 and is shaped like every other one. So an answer that makes the
        grader fail is never better off than a wrong answer that is graded 0.
        """
        shaped = scaled(raw, scale=self.scale, bias=self.bias, low=self.low, high=self.high)
        if self.buffer is None:
            return shaped
        return shaped + overlong_penalty(
            response.num_tokens, budget=response.budget, buffer=self.buffer, penalty=self.penalty
        )

    def masks(self, response: Response) -> bool:
        """Return whether the episode's tokens are left out of the loss. Its reward still counts in its group."""
        return self.mask_truncated and response.truncated


UNSHAPED = Shaping()
