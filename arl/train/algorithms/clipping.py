"""Compute the clipped and weighted gain that PPO, decoupled PPO and GSPO share. N terms: tokens, or sequences.

u = exp(log_ratio)    ratio, carries the gradient
w = exp(log_weight)   behavior weight, constant; in the loss capped, masked or off
loss = −Σ w · min(u A, clip(u, 1 − ε_low, 1 + ε_high) A), with a dual clip at least c A where A < 0
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import Field

from arl.config.objective_section import Statistic
from arl.config.section import NonNegativeFloat
from arl.train.algorithms.objective import Objective

if TYPE_CHECKING:
    from torch import Tensor

    from arl.train.algorithms.objective import TokenColumns

ClipLow = Annotated[float, Field(gt=0, lt=1)]
DualClip = Annotated[float, Field(gt=1)]
WeightUse = Literal["capped", "masked", "off"]

RATIO_METRICS: Mapping[str, Statistic] = {
    "ratio/mean": Statistic("ratio", "mean"),
    "ratio/max": Statistic("ratio", "max"),
    "ratio/clip_fraction": Statistic("is_clipped", "mean"),
    "ratio/clip_fraction_up": Statistic("is_clipped_up", "mean"),
    "ratio/clip_fraction_down": Statistic("is_clipped_down", "mean"),
    "kl/behavior_current": Statistic("kl_behavior_current", "mean"),
    "by_age/ratio": Statistic("ratio", "mean", by_age=True),
    "by_age/clip_up": Statistic("is_clipped_up", "mean", by_age=True),
    "by_age/clip_down": Statistic("is_clipped_down", "mean", by_age=True),
    "by_age/kl_behavior_current": Statistic("kl_behavior_current", "mean", by_age=True),
}
DUAL_CLIP_METRICS = {
    "ratio/dual_clip_fraction": Statistic("is_dual_clipped", "mean"),
}
PROXIMAL_METRICS: Mapping[str, Statistic] = {
    "behavior_weight/uncapped_mean": Statistic("uncapped_weight", "mean"),
    "behavior_weight/max": Statistic("uncapped_weight", "max"),
    "behavior_weight/effective_sample_size": Statistic("uncapped_weight", "effective_sample_size"),
    "kl/behavior_proximal": Statistic("kl_behavior_proximal", "mean"),
    "kl/proximal_current": Statistic("kl_proximal_current", "mean"),
    "by_age/behavior_weight": Statistic("uncapped_weight", "mean", by_age=True),
    "by_age/effective_sample_size": Statistic("uncapped_weight", "effective_sample_size", by_age=True),
    "by_age/kl_behavior_proximal": Statistic("kl_behavior_proximal", "mean", by_age=True),
    "by_age/kl_proximal_current": Statistic("kl_proximal_current", "mean", by_age=True),
}
WEIGHT_METRICS: Mapping[str, Statistic] = {
    "behavior_weight/mean": Statistic("weight", "mean"),
    "behavior_weight/capped_fraction": Statistic("is_capped", "mean"),
}
DECOUPLED_METRICS: Mapping[str, Statistic] = {**RATIO_METRICS, **PROXIMAL_METRICS, **WEIGHT_METRICS}
MOST_LOG_RATIO = 20.0  # exp(20) = 4.9e8; float32's exp overflows at 88.7


class Clipped(Objective):
    """Hold what objectives share that clip a ratio."""

    dual_clip: DualClip | None = None
    """c: where A < 0 the gain is at least c A (arXiv 1912.09729, eq. 5), so that a large ratio gives no gradient; none:
    no such bound. The paper takes 3."""

    entropy_coefficient: NonNegativeFloat = 0.0
    """β: the loss is less by β times the entropy, in nats, of each loss token, and divided like the rest of it; 0: no
    such term. Published runs that use one take 1e-4 to 1e-2. Above 0, groups of equal rewards are trained as well."""

    @property
    def leaves_out_zeros(self) -> bool:
        return super().leaves_out_zeros and not self.entropy_coefficient

    def entropy_term(self, entropy: "Tensor") -> "Tensor | float":
        """Return what the loss gains by the entropies of its terms, (N,): −β Σ H, or 0 without β."""
        return -self.entropy_coefficient * entropy.sum() if self.entropy_coefficient else 0.0

    @property
    def statistics(self) -> dict[str, Statistic]:
        found = super().statistics
        return found if self.dual_clip is None else found | DUAL_CLIP_METRICS

    @staticmethod
    def drift(tokens: "TokenColumns") -> "dict[str, Tensor]":
        """Estimate KL(behavior ‖ current) at each token, (N,): it means the same under every objective."""
        log_ratio = tokens.current_logprobs - tokens.behavior_logprobs
        return {"kl_behavior_current": kl_estimate(log_ratio)}


class ClippedGain(NamedTuple):
    """Hold the gain of each term, and which bound removed its gradient."""

    gain: "Tensor"  # (N,) min(u A, clip(u) A), carries the gradient
    values: dict[str, "Tensor"]  # (N,) each, without gradient: of the ratio and its clips


class BehaviorWeight(NamedTuple):
    """Hold the weight of each term, without gradient."""

    weight: "Tensor"  # (N,) as it is used in the loss
    values: dict[str, "Tensor"]  # (N,) each: what WEIGHT_METRICS are made of, and `uncapped_weight`


def clipped_gain(
    log_ratio: "Tensor",
    advantages: "Tensor",
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> ClippedGain:
    """Compute PPO's pessimistic gain, arXiv 1707.06347, eq. 7, with a bound of its own on either side.

    With `dual_clip` c, the gain of a term with A < 0 is max(min(u A, clip(u) A), c A): arXiv 1912.09729, eq. 5.

    A log-ratio above MOST_LOG_RATIO counts as MOST_LOG_RATIO. Otherwise the ratio overflows, and with A > 0, where the
    clip is chosen, the backward multiplies its gradient 0 by the infinite ratio, which gives NaN. The gradient is still
    right. With A > 0 it is 0, because the clip is chosen. With A < 0 it is u A of the bounded u: it pushes the token
    down, because the bound is applied to the value alone and passes the derivative on.
    """
    excess = (log_ratio - log_ratio.clamp(max=MOST_LOG_RATIO)).detach()
    ratio = (log_ratio - excess).exp()
    unclipped = ratio * advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    gain = unclipped.minimum(clipped)
    is_clipped = (clipped < unclipped).detach()
    values = {
        "ratio": ratio.detach(),
        "is_clipped": is_clipped,
        "is_clipped_up": is_clipped & (advantages > 0),
        "is_clipped_down": is_clipped & (advantages < 0),
    }
    if dual_clip is not None:
        is_dual_clipped = (values["ratio"] > dual_clip) & (advantages < 0)
        gain = gain.where(~is_dual_clipped, dual_clip * advantages)
        values["is_dual_clipped"] = is_dual_clipped
    return ClippedGain(gain, values)


def behavior_weight(log_weight: "Tensor", cap: float, use: WeightUse = "capped") -> BehaviorWeight:
    """Compute w = π_prox / π_behav, and what the loss uses of it.

    A log-weight above MOST_LOG_RATIO counts as MOST_LOG_RATIO, so that the sums of uncapped weights stay finite.

    Args:
        cap: not read where `use` is off.
        use: capped: min(w, cap). masked: w, or 0 where w > cap. off: 1.
    """
    uncapped = log_weight.clamp(max=MOST_LOG_RATIO).exp()
    values = {"uncapped_weight": uncapped}
    if use == "off":
        return BehaviorWeight(uncapped.new_ones(uncapped.shape), values)
    is_capped = uncapped > cap
    most = 0.0 if use == "masked" else cap
    weight = uncapped.masked_fill(is_capped, most)
    values |= {"weight": weight, "is_capped": is_capped}
    return BehaviorWeight(weight, values)


def kl_estimate(log_ratio: "Tensor") -> "Tensor":
    """Estimate KL(p ‖ q) at each token that p sampled, from log q − log p: k3 = r − 1 − log r ≥ 0, without gradient.

    It is the estimator of http://joschu.net/blog/kl-approx.html, computed with expm1, because r − 1 loses all digits of
    a small log r: in float32, 43 % of the estimates at |log r| = 1e-4 were negative.
    """
    bounded = log_ratio.detach().clamp(max=MOST_LOG_RATIO)
    return (bounded.expm1() - bounded).clamp(min=0.0)


def check_columns(tokens: "TokenColumns", center: "Tensor") -> None:
    """Assert that columns have one shape (N,), and that none but the current log-probabilities has a gradient."""
    shape = tokens.current_logprobs.shape
    constants = (tokens.behavior_logprobs, tokens.advantages, center)
    assert len(shape) == 1
    assert all(column.shape == shape for column in constants)
    assert not any(column.requires_grad for column in constants)
