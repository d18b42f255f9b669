"""Compute naive PPO, which clips around the behavior policy; arXiv 1707.06347, eq. 7.

    u = exp(current − behavior)
    loss = −min(u A, clip(u) A) of each token

It is decoupled PPO with π_prox = π_behav and w = 1.
"""

from typing import TYPE_CHECKING

from arl.config.section import PositiveFloat
from arl.train.algorithms.clipping import RATIO_METRICS, ClipLow, Clipped, check_columns, clipped_gain, drift
from arl.train.algorithms.objective import TokenColumns

if TYPE_CHECKING:
    from torch import Tensor


class PPO(Clipped):
    """Clip each token around the policy that sampled it, however old that is (arXiv 1707.06347)."""

    scope = "token"
    columns = ()
    zero_advantage_is_zero_gradient = True
    metrics = RATIO_METRICS

    kind: str = "ppo"
    """The short name of this class."""
    clip_low: ClipLow = 0.2
    """ε_low."""
    clip_high: PositiveFloat = 0.2
    """ε_high."""

    def loss(self, tokens: TokenColumns) -> "tuple[Tensor, dict[str, Tensor]]":
        behavior = tokens.behavior_logprobs
        check_columns(tokens, behavior)
        log_ratio = tokens.current_logprobs - behavior
        gain, values = clipped_gain(log_ratio, tokens.advantages, self.clip_low, self.clip_high, self.dual_clip)
        return -gain, values | drift(tokens)
