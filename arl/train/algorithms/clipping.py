"""Compute the clipped gain that PPO, decoupled PPO and GSPO share, of N tokens.

u = exp(log_ratio)    ratio, carries the gradient
gain = min(u A, clip(u, 1 − ε_low, 1 + ε_high) A), with a dual clip at least c A where A < 0
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from arl.config.objective_section import Statistic
from arl.train.algorithms.objective import Objective, TokenColumns
from arl.train.algorithms.terms import bounded_ratio, divergence

if TYPE_CHECKING:
    from torch import Tensor


ClipLow = Annotated[float, Field(gt=0, lt=1)]
DualClip = Annotated[float, Field(gt=1)]

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
DUAL_CLIP_METRICS = {"ratio/dual_clip_fraction": Statistic("is_dual_clipped", "mean")}


class Clipped(Objective):
    """Hold what objectives share that clip a ratio."""

    dual_clip: DualClip | None = None
    """c: where A < 0 the gain is at least c A (arXiv 1912.09729, which takes 3), so that a large ratio gives no
    gradient. null: no bound."""

    @property
    def statistics(self) -> dict[str, Statistic]:
        found = super().statistics
        return found if self.dual_clip is None else found | DUAL_CLIP_METRICS


def drift(tokens: TokenColumns) -> "dict[str, Tensor]":
    """Estimate KL(behavior ‖ current) at each token, (N,): it means the same under every objective."""
    log_ratio = tokens.current_logprobs.detach() - tokens.behavior_logprobs
    return {"kl_behavior_current": divergence(log_ratio, "k3")}


def clipped_gain(
    log_ratio: "Tensor", advantages: "Tensor", clip_low: float, clip_high: float, dual_clip: float | None = None
) -> "tuple[Tensor, dict[str, Tensor]]":
    """Compute PPO's pessimistic gain, arXiv 1707.06347, eq. 7, with a bound of its own on either side.

    With `dual_clip` c, the gain of a term with A < 0 is max(min(u A, clip(u) A), c A): arXiv 1912.09729, eq. 5.

    Returns:
        The gain, (N,) min(u A, clip(u) A), with gradient; and by name the ratio and its clips, (N,) each, without.
    """
    ratio = bounded_ratio(log_ratio)
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
    return gain, values


def check_columns(tokens: TokenColumns, center: "Tensor") -> None:
    """Assert that columns have one shape (N,), and that none but the current log-probabilities has a gradient."""
    shape = tokens.current_logprobs.shape
    constants = (tokens.behavior_logprobs, tokens.advantages, center)
    assert len(shape) == 1
    assert all(column.shape == shape for column in constants)
    assert not any(column.requires_grad for column in constants)
