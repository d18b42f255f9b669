"""Compute the clipped and weighted gain that PPO, decoupled PPO and GSPO share. N terms: tokens, or sequences.

u = exp(log_ratio)    ratio, carries the gradient
w = exp(log_weight)   behavior weight, constant and capped
loss = −Σ w · min(u A, clip(u, 1 − ε_low, 1 + ε_high) A)
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from arl.train.algorithms.objective import TokenColumns

RATIO_METRICS: Mapping[str, Literal["mean", "max"]] = {
    "ratio/clip_fraction": "mean",
    "ratio/max": "max",
}
DECOUPLED_METRICS: Mapping[str, Literal["mean", "max"]] = {
    **RATIO_METRICS,
    "behavior_weight/mean": "mean",
    "behavior_weight/capped_fraction": "mean",
    "kl/behavior_proximal": "mean",
}
MOST_LOG_RATIO = 20.0  # exp(20) = 4.9e8; float32's exp overflows at 88.7


class ClippedGain(NamedTuple):
    """Holds the gain of each term, and whether its clip was chosen."""

    gain: "Tensor"  # (N,) min(u A, clip(u) A), carries the gradient
    ratio: "Tensor"  # (N,) u, without gradient
    is_clipped: "Tensor"  # (N,) bool: the clip removed this term's gradient


class BehaviorWeight(NamedTuple):
    """Holds the weight of each term, without gradient."""

    weight: "Tensor"  # (N,) min(w, cap)
    is_capped: "Tensor"  # (N,) bool
    kl: "Tensor"  # (N,) k3 estimate of KL(behavior ‖ proximal), ≥ 0


def clipped_gain(log_ratio: "Tensor", advantages: "Tensor", clip_low: float, clip_high: float) -> ClippedGain:
    """Compute PPO's pessimistic gain, arXiv 1707.06347, eq. 7, with a bound of its own on either side.

    A log-ratio above MOST_LOG_RATIO counts as MOST_LOG_RATIO. Otherwise the ratio overflows, and with A > 0, where the
    clip is chosen, the backward multiplies its gradient 0 by the infinite ratio, which gives NaN. The gradient is still
    right. With A > 0 it is 0, because the clip is chosen. With A < 0 it is u A of the bounded u: it pushes the token
    down, because the bound is applied to the value alone and passes the derivative on.
    """
    excess = (log_ratio - log_ratio.clamp(max=MOST_LOG_RATIO)).detach()
    ratio = (log_ratio - excess).exp()
    unclipped = ratio * advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    is_clipped = (clipped < unclipped).detach()
    return ClippedGain(unclipped.minimum(clipped), ratio.detach(), is_clipped)


def behavior_weight(log_weight: "Tensor", cap: float) -> BehaviorWeight:
    """Compute w = min(π_prox / π_behav, cap), and k3 = w − 1 − log w of the uncapped weights.

    k3 estimates KL(behavior ‖ proximal) from samples of the behavior policy (http://joschu.net/blog/kl-approx.html). It
    is computed with expm1, because w − 1 loses all digits of a small log w: in float32, 43 % of the estimates at
    |log w| = 1e-4 were negative.
    """
    weight = log_weight.exp()
    kl = (log_weight.expm1() - log_weight).clamp(min=0.0)
    return BehaviorWeight(weight.clamp(max=cap), weight > cap, kl)


def check_columns(tokens: "TokenColumns", center: "Tensor") -> None:
    """Assert that columns have one shape (N,), and that none but the current log-probabilities has a gradient."""
    shape = tokens.current_logprobs.shape
    constants = (tokens.behavior_logprobs, tokens.advantages, center)
    assert len(shape) == 1
    assert all(column.shape == shape for column in constants)
    assert not any(column.requires_grad for column in constants)
