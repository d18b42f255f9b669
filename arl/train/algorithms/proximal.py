"""Choose where π_prox comes from: a forward pass before the minibatches, or A-3PO's interpolation."""

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import field_validator, model_validator

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

DEFAULT_CAP = 5.0


class AroundProximal(Clipped):
    """Hold what objectives share that are centered on the proximal policy."""

    columns = ("proximal_logprobs",)
    metrics = DECOUPLED_METRICS

    proximal: Literal["recompute", "loglinear"] = "recompute"
    """π_prox by a forward pass before the minibatches, or by A-3PO's interpolation, which needs none."""
    behavior_weight: WeightUse = "capped"
    """What the loss uses of w = π_prox / π_behav. `capped`: min(w, cap). `masked`: w, and 0 where w is above the cap.
    `off`: 1, which leaves the re-centered clip alone."""
    behavior_weight_cap: PositiveFloat | None = None
    """The cap; none: 5. It must be none with `behavior_weight: off`, which reads none."""

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
        cap = DEFAULT_CAP if self.behavior_weight_cap is None else self.behavior_weight_cap
        return behavior_weight(log_weight, cap, self.behavior_weight)

    def divergences(self, tokens: "TokenColumns", log_ratio: "Tensor", log_weight: "Tensor") -> "dict[str, Tensor]":
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
    assert policy_versions.shape == current.shape
    # The assertion runs on the device: the host does not wait for its answer.
    torch._assert_async((age >= 0).all(), "a token from the future")
    alpha = age / (age + 1.0)
    return behavior + alpha * (current.detach() - behavior)
