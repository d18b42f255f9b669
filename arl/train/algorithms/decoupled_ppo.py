"""Compute decoupled PPO: clip around the proximal policy, weigh by proximal / behavior; arXiv 2505.24298, eq. 5.

u = exp(current − proximal)
w = exp(proximal − behavior), capped, masked or 1
loss = −w · min(u A, clip(u) A) of each token
"""

from typing import TYPE_CHECKING

from arl.config.section import PositiveFloat
from arl.train.algorithms.around_proximal import AroundProximal
from arl.train.algorithms.clipping import ClipLow, Clipped, check_columns, clipped_gain
from arl.train.algorithms.objective import TokenColumns

if TYPE_CHECKING:
    from torch import Tensor


class DecoupledPPO(Clipped, AroundProximal):
    """Clip each token around the proximal policy, and weigh it by proximal / behavior (arXiv 2505.24298, §5)."""

    scope = "token"
    zero_advantage_is_zero_gradient = True

    kind: str = "decoupled_ppo"
    """The short name of this class."""
    clip_low: ClipLow = 0.2
    """ε_low."""
    clip_high: PositiveFloat = 0.2
    """ε_high."""

    def loss(self, tokens: TokenColumns) -> "tuple[Tensor, dict[str, Tensor]]":
        proximal = self.center(tokens)
        check_columns(tokens, proximal)
        log_ratio = tokens.current_logprobs - proximal
        log_weight = proximal - tokens.behavior_logprobs
        gain, values = clipped_gain(log_ratio, tokens.advantages, self.clip_low, self.clip_high, self.dual_clip)
        weight, weight_values = self.weigh(tokens, log_weight)
        return -weight * gain, values | weight_values | self.divergences(tokens, log_ratio, log_weight)
