"""Choose where π_prox comes from: a forward pass before the minibatches, or A-3PO's interpolation."""

from typing import TYPE_CHECKING, Any, Literal

from pydantic import model_validator

from arl.config.objective_section import Statistic
from arl.config.section import PositiveFloat
from arl.train.algorithms.clipping import (
    DECOUPLED_METRICS,
    WEIGHT_METRICS,
    BehaviorWeight,
    Clipped,
    WeightUse,
    behavior_weight,
    kl_estimate,
)

if TYPE_CHECKING:
    from torch import Tensor

    from arl.train.algorithms.objective import TokenColumns


class AroundProximal(Clipped):
    """Holds what objectives share that are centered on the proximal policy."""

    columns = ("proximal_logprobs",)
    metrics = DECOUPLED_METRICS

    proximal: Literal["recompute", "loglinear"] = "recompute"
    """π_prox by a forward pass before the minibatches, or by A-3PO's interpolation, which needs none."""
    behavior_weight: WeightUse = "capped"
    """What the loss uses of w = π_prox / π_behav. `capped`: min(w, cap). `masked`: w, and 0 where w is above the cap.
    `off`: 1, which leaves the re-centered clip alone."""
    behavior_weight_cap: PositiveFloat | None = 5.0
    """The cap; with `behavior_weight: off` there is none."""

    @model_validator(mode="before")
    @classmethod
    def _has_a_cap_where_it_is_read(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        is_off = fields.get("behavior_weight") == "off"
        cap = fields.get("behavior_weight_cap")
        if is_off and cap is not None:
            raise ValueError(
                f"objective.behavior_weight_cap {cap}: nothing reads it with behavior_weight off; leave it out, or "
                "choose capped or masked"
            )
        if not is_off and "behavior_weight_cap" in fields and cap is None:
            raise ValueError("objective.behavior_weight_cap null: give a number, or choose behavior_weight off")
        return fields | {"behavior_weight_cap": None} if is_off else fields

    @property
    def statistics(self) -> dict[str, Statistic]:
        found = super().statistics
        if self.behavior_weight == "off":
            return {name: statistic for name, statistic in found.items() if name not in WEIGHT_METRICS}
        return found

    @property
    def cheaper(self) -> str:
        return "objective.proximal=loglinear" if self.proximal == "recompute" else ""

    @property
    def needed_columns(self) -> tuple[str, ...]:
        return () if self.proximal == "loglinear" else self.columns

    def center(self, tokens: "TokenColumns") -> "Tensor":
        """Return log π_prox of each token, (N,), without gradient."""
        if self.proximal == "loglinear":
            return loglinear_proximal(
                current=tokens.current_logprobs,
                behavior=tokens.behavior_logprobs,
                policy_versions=tokens.policy_versions,
                version=tokens.version,
            )
        assert tokens.proximal_logprobs is not None, "the learner fills the columns that an objective needs"
        return tokens.proximal_logprobs

    def weigh(self, log_weight: "Tensor") -> BehaviorWeight:
        """Compute the behavior weight of terms whose log π_prox − log π_behav is `log_weight`, (N,)."""
        return behavior_weight(log_weight, self.behavior_weight_cap, self.behavior_weight)

    @staticmethod
    def divergences(log_ratio: "Tensor", log_weight: "Tensor") -> "dict[str, Tensor]":
        """Estimate KL(behavior ‖ proximal) and KL(proximal ‖ current) at each token, (N,) each."""
        return {
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
    assert policy_versions.shape == current.shape
    # The assertion runs on the device: the host does not wait for its answer.
    torch._assert_async((age >= 0).all(), "a token from the future")
    alpha = age / (age + 1.0)
    return behavior + alpha * (current.detach() - behavior)
