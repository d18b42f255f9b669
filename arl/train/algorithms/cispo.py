"""Compute CISPO, which clips the weight of a token's gradient and never the token; MiniMax-M1, arXiv 2506.13585, eq. 4.

u = exp(current − proximal), constant
loss = −w · clip(u, 1 − ε_low, 1 + ε_high) · A · log π_θ
"""

from typing import TYPE_CHECKING

from arl.config.section import Fraction, PositiveFloat
from arl.train.algorithms.around_proximal import AroundProximal
from arl.train.algorithms.clipping import check_columns
from arl.train.algorithms.objective import TokenColumns
from arl.train.algorithms.terms import LOWEST, bounded_ratio

if TYPE_CHECKING:
    from torch import Tensor


class CISPO(AroundProximal):
    """Learn from every token by REINFORCE, with a clipped importance weight (MiniMax-M1, arXiv 2506.13585)."""

    scope = "token"
    zero_advantage_is_zero_gradient = True

    kind: str = "cispo"
    """The short name of this class."""
    clip_low: Fraction = 1.0
    """ε_low; 1: no lower bound, as in the paper."""
    clip_high: PositiveFloat = 4.0
    """ε_high; ScaleRL (arXiv 2510.13786) finds u ≤ 4, 5 and 8 alike."""

    def loss(self, tokens: TokenColumns) -> "tuple[Tensor, dict[str, Tensor]]":
        proximal = self.center(tokens)
        check_columns(tokens, proximal)
        log_ratio = tokens.current_logprobs - proximal
        log_weight = proximal - tokens.behavior_logprobs
        ratio = bounded_ratio(log_ratio.detach())
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        weight, weight_values = self.weigh(tokens, log_weight)
        is_up = ratio > 1 + self.clip_high
        is_down = ratio < 1 - self.clip_low
        values = {"ratio": ratio, "is_clipped": is_up | is_down, "is_clipped_up": is_up, "is_clipped_down": is_down}
        loss = -weight * clipped * tokens.advantages * tokens.current_logprobs.clamp(min=LOWEST)
        return loss, values | weight_values | self.divergences(tokens, log_ratio, log_weight)
