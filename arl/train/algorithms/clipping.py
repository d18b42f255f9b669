"""Compute the clipped and weighted gain that PPO, decoupled PPO and GSPO share, of N tokens.

u = exp(log_ratio)    ratio, carries the gradient
w = exp(log_weight)   behavior weight, constant; in the loss capped, masked or off
loss = −w · min(u A, clip(u, 1 − ε_low, 1 + ε_high) A), with a dual clip at least c A where A < 0
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from arl.config.objective_section import Statistic
from arl.config.section import PositiveFloat
from arl.train.algorithms.objective import Objective, TokenColumns
from arl.train.algorithms.terms import MOST_LOG_RATIO

if TYPE_CHECKING:
    from torch import Tensor


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
DUAL_CLIP_METRICS = {"ratio/dual_clip_fraction": Statistic("is_dual_clipped", "mean")}
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


class Clipped(Objective):
    """Hold what objectives share that clip a ratio."""

    dual_clip: DualClip | None = None
    """c: where A < 0 the gain is at least c A (arXiv 1912.09729, which takes 3), so that a large ratio gives no
    gradient. null: no bound."""

    @property
    def statistics(self) -> dict[str, Statistic]:
        found = super().statistics
        return found if self.dual_clip is None else found | DUAL_CLIP_METRICS

    @staticmethod
    def drift(tokens: TokenColumns) -> "dict[str, Tensor]":
        """Estimate KL(behavior ‖ current) at each token, (N,): it means the same under every objective."""
        log_ratio = tokens.current_logprobs - tokens.behavior_logprobs
        return {"kl_behavior_current": kl_estimate(log_ratio)}


def clipped_gain(
    log_ratio: "Tensor", advantages: "Tensor", clip_low: float, clip_high: float, dual_clip: float | None = None
) -> "tuple[Tensor, dict[str, Tensor]]":
    """Compute PPO's pessimistic gain, arXiv 1707.06347, eq. 7, with a bound of its own on either side.

    With `dual_clip` c, the gain of a term with A < 0 is max(min(u A, clip(u) A), c A): arXiv 1912.09729, eq. 5.

    A log-ratio above MOST_LOG_RATIO counts as MOST_LOG_RATIO. Otherwise the ratio overflows, and with A > 0, where the
    clip is chosen, the backward multiplies its gradient 0 by the infinite ratio, which gives NaN. The gradient is still
    right. With A > 0 it is 0, because the clip is chosen. With A < 0 it is u A of the bounded u: it pushes the token
    down, because the bound is applied to the value alone and passes the derivative on.

    Returns:
        The gain, (N,) min(u A, clip(u) A), with gradient; and by name the ratio and its clips, (N,) each, without.
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
    return gain, values


def behavior_weight(log_weight: "Tensor", cap: float, use: WeightUse = "capped") -> "tuple[Tensor, dict[str, Tensor]]":
    """Compute w = π_prox / π_behav, and what the loss uses of it.

    A log-weight above MOST_LOG_RATIO counts as MOST_LOG_RATIO, so that the sums of uncapped weights stay finite.

    Args:
        cap: not read where `use` is off.
        use: capped: min(w, cap). masked: w, or 0 where w > cap. off: 1.

    Returns:
        The weight in the loss, (N,); and by name what WEIGHT_METRICS and PROXIMAL_METRICS are made of, (N,) each.
    """
    uncapped = log_weight.clamp(max=MOST_LOG_RATIO).exp()
    values = {"uncapped_weight": uncapped}
    if use == "off":
        return uncapped.new_ones(uncapped.shape), values
    is_capped = uncapped > cap
    weight = uncapped.masked_fill(is_capped, 0.0 if use == "masked" else cap)
    return weight, values | {"weight": weight, "is_capped": is_capped}


def kl_estimate(log_ratio: "Tensor") -> "Tensor":
    """Estimate KL(p ‖ q) at each token that p sampled, from log q − log p: k3 = r − 1 − log r ≥ 0, without gradient.

    It is the estimator of http://joschu.net/blog/kl-approx.html, computed with expm1, because r − 1 loses all digits of
    a small log r: in float32, 43 % of the estimates at |log r| = 1e-4 were negative.
    """
    bounded = log_ratio.detach().clamp(max=MOST_LOG_RATIO)
    return (bounded.expm1() - bounded).clamp(min=0.0)


def check_columns(tokens: TokenColumns, center: "Tensor") -> None:
    """Assert that columns have one shape (N,), and that none but the current log-probabilities has a gradient."""
    shape = tokens.current_logprobs.shape
    constants = (tokens.behavior_logprobs, tokens.advantages, center)
    assert len(shape) == 1
    assert all(column.shape == shape for column in constants)
    assert not any(column.requires_grad for column in constants)


DEFAULT_CAP = 5.0
CENTERS = {"recompute": ("proximal_logprobs",), "sampled": ("sampled_logprobs",), "loglinear": ()}  # log π_prox


class AroundProximal(Clipped):
    """Hold what objectives share that are centered on the proximal policy."""

    columns = ()
    metrics = DECOUPLED_METRICS

    proximal: Literal["recompute", "loglinear", "sampled"] = "recompute"
    """π_prox by a forward pass before the minibatches, or by A-3PO's interpolation, which needs none; or the version
    that sampled the token, by a forward pass of each."""
    behavior_weight: WeightUse = "capped"
    """Weight in the loss, from w = π_prox / π_behav. `capped`: min(w, cap). `masked`: w, or 0 above the cap. `off`:
    1."""
    behavior_weight_cap: PositiveFloat | None = None
    """The cap. null: 5. Leave it out with `behavior_weight: off`."""

    @field_validator("behavior_weight", mode="before")
    @classmethod
    def _off_is_a_word(cls, use: Any) -> Any:
        """Accept false for off, because YAML 1.1 reads the word off as false."""
        return "off" if use is False else use

    @model_validator(mode="after")
    def _reads_its_cap(self) -> Self:
        if self.behavior_weight == "off" and self.behavior_weight_cap is not None:
            raise ValueError(
                f"objective.behavior_weight_cap {self.behavior_weight_cap:g}: nothing reads it with behavior_weight "
                "off; set it to null, or choose capped or masked"
            )
        return self

    @property
    def statistics(self) -> dict[str, Statistic]:
        found = super().statistics
        if self.behavior_weight == "off":
            return {name: statistic for name, statistic in found.items() if name not in WEIGHT_METRICS}
        return found

    @property
    def needed_columns(self) -> tuple[str, ...]:
        return (*super().needed_columns, *CENTERS[self.proximal])

    def center(self, tokens: TokenColumns) -> "Tensor":
        """Return log π_prox of each token, (N,), without gradient."""
        if self.proximal == "loglinear":
            return loglinear_proximal(
                tokens.current_logprobs, tokens.behavior_logprobs, tokens.policy_versions, tokens.version
            )
        found = tokens.sampled_logprobs if self.proximal == "sampled" else tokens.proximal_logprobs
        assert found is not None, "the learner fills the columns that an objective needs"
        return found

    def weigh(self, log_weight: "Tensor") -> "tuple[Tensor, dict[str, Tensor]]":
        """Compute the behavior weight of terms whose log π_prox − log π_behav is `log_weight`, (N,)."""
        cap = DEFAULT_CAP if self.behavior_weight_cap is None else self.behavior_weight_cap
        return behavior_weight(log_weight, cap, self.behavior_weight)

    def divergences(self, tokens: TokenColumns, log_ratio: "Tensor", log_weight: "Tensor") -> "dict[str, Tensor]":
        """Estimate KL(behavior ‖ proximal), KL(proximal ‖ current) and the drift of both at each token, (N,) each."""
        return self.drift(tokens) | {
            "kl_behavior_proximal": kl_estimate(log_weight),
            "kl_proximal_current": kl_estimate(log_ratio),
        }


def loglinear_proximal(current: "Tensor", behavior: "Tensor", policy_versions: "Tensor", version: int) -> "Tensor":
    """Interpolate log π_prox between the policy that sampled and the current one; A-3PO, arXiv 2512.06547.

        log π_prox = log π_b + α (log π_θ − log π_b),   α = (v' − 1 − v_b) / (v' − v_b)

    v' = v + 1 is the version that the step produces. A token sampled by the policy being trained (v_b = v) has α = 0,
    and an old one nearly 1.

    Args:
        current: (N,) log π_θ; its gradient is not followed.
        behavior: (N,) log π_b.
        policy_versions: (N,) int64, the version v_b that sampled each token, ≤ v.
        version: v, the trainer's version before the step.
    """
    import torch

    age = version - policy_versions
    # The assertion runs on the device: the host does not wait for its answer.
    torch._assert_async((age >= 0).all(), "a token from the future")
    alpha = age / (age + 1.0)
    return behavior + alpha * (current.detach() - behavior)
