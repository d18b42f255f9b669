"""Shape the rewards of training episodes. Pure functions of a reward and of how long its response is.

    shaped = clip((raw + bias) · scale, low, high) + overlong penalty

Scale, bias and clip are those of AReaL (arXiv 2505.24298), whose math recipes use bias −0.5, scale 10 and clip 20. The
penalty is DAPO's (arXiv 2503.14476, equation 13). An evaluation never shapes.
"""

import math

from arl.config.scoring_sections import Reward
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


def shaped(raw: float, response: Response, section: Reward) -> float:
    """Return the reward that training learns from.

    An episode without a grade has the raw reward 0 and is shaped like every other one. So an answer that makes the
    grader fail is never better off than a wrong answer that is graded 0.
    """
    low, high = section.clip or (-math.inf, math.inf)
    reward = scaled(raw, scale=section.scale, bias=section.bias, low=low, high=high)
    if section.overlong is None:
        return reward
    return reward + overlong_penalty(
        response.num_tokens,
        budget=response.budget,
        buffer=section.overlong.buffer,
        penalty=section.overlong.penalty,
    )


def is_masked(response: Response, section: Reward) -> bool:
    """Return whether the episode's tokens are left out of the loss. Its reward still counts in its group."""
    return section.mask_truncated and response.truncated


UNSHAPED = Reward()
