"""Hold what objectives share that are centered on the proximal policy, and weigh by it.

u = exp(current − proximal)     ratio, carries the gradient
w = exp(proximal − behavior)    behavior weight, constant; see arl.train.algorithms.behavior_weight
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from arl.config.objective_section import Statistic
from arl.train.algorithms.behavior_weight import Level, Weight, Weights, weigh
from arl.train.algorithms.clipping import RATIO_METRICS, drift
from arl.train.algorithms.objective import Objective, TokenColumns
from arl.train.algorithms.terms import LOWEST, MAX_LOG_RATIO, divergence

if TYPE_CHECKING:
    from torch import Tensor

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
CENTERS = {"recompute": ("proximal_logprobs",), "sampled": ("sampled_logprobs",), "loglinear": ()}  # log π_prox


class AroundProximal(Objective):
    """Hold what objectives share that are centered on the proximal policy."""

    columns: ClassVar[tuple[str, ...]] = ()
    metrics = DECOUPLED_METRICS

    proximal: Literal["recompute", "loglinear", "sampled"] = "recompute"
    """π_prox by a forward pass before the minibatches, or by A-3PO's interpolation, which needs none; or the version
    that sampled the token, by a forward pass of each."""
    weight: Weights = Weight()
    """One section, or a list of them, whose factors are multiplied."""

    @property
    def statistics(self) -> dict[str, Statistic]:
        found = super().statistics
        if all(section.mode == "off" for section in self.weights):
            return {name: statistic for name, statistic in found.items() if name not in WEIGHT_METRICS}
        return found

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Return the sections of `weight`."""
        return self.weight if isinstance(self.weight, tuple) else (self.weight,)

    @property
    def needs_sequences(self) -> bool:
        return super().needs_sequences or any(section.level not in (None, "token") for section in self.weights)

    @property
    def leaves_out_zeros(self) -> bool:
        return super().leaves_out_zeros and not self.narrows  # else nobody knows how many of them would be kept

    @property
    def narrows(self) -> bool:
        return any(section.denominator == "narrowed" for section in self.weights)

    def validate_settings(self) -> None:
        super().validate_settings()
        if not self.weights:
            raise ValueError("objective.weight []: an empty list; give a section, or {mode: off}")
        if self.narrows and self.normalizer != "tokens":
            raise ValueError(
                f"objective.weight.denominator narrowed: counts tokens, and normalizer is {self.normalizer}; use tokens"
            )

    @property
    def needed_columns(self) -> tuple[str, ...]:
        return (*super().needed_columns, *CENTERS[self.proximal])

    def center(self, tokens: TokenColumns) -> "Tensor":
        """Return log π_prox of each token, (N,), without gradient."""
        if self.proximal == "loglinear":
            return loglinear_proximal(
                tokens.current_logprobs,
                tokens.behavior_logprobs,
                tokens.policy_versions,
                tokens.version,
                tokens.progress,
            )
        found = tokens.sampled_logprobs if self.proximal == "sampled" else tokens.proximal_logprobs
        assert found is not None, "the learner fills the columns that an objective needs"
        return found.clamp(min=LOWEST)

    def weigh(self, tokens: TokenColumns, log_weight: "Tensor") -> "tuple[Tensor, dict[str, Tensor]]":
        """Compute the factor of each token's loss from log π_prox − log π_behav, (N,); see behavior_weight.weigh."""
        own_level: Level = "sequence_mean" if self.scope == "sequence" else "token"
        return weigh(log_weight, tokens.sequences, self.weights, own_level)

    def divergences(self, tokens: TokenColumns, log_ratio: "Tensor", log_weight: "Tensor") -> "dict[str, Tensor]":
        """Estimate KL(behavior ‖ proximal), KL(proximal ‖ current) and the drift of both at each token, (N,) each."""
        return drift(tokens) | {
            "kl_behavior_proximal": divergence(log_weight, "k3"),
            "kl_proximal_current": divergence(log_ratio.detach(), "k3"),
        }


def loglinear_proximal(
    current: "Tensor", behavior: "Tensor", policy_versions: "Tensor", version: int, progress: float = 1.0
) -> "Tensor":
    """Interpolate log π_prox between the policy that sampled and the current one; A-3PO, arXiv 2512.06547.

        log π_prox = log π_b + α (log π_θ − log π_b),   α = a / (a + p),   a = v − v_b

    By versions, π_θ is as far from v_b as a + p, and π_prox as far as a. The paper's α is that of p = 1, the end of the
    step. At p = 0 π_θ is π_prox, so α is 1.

    Args:
        current: (N,) log π_θ; its gradient is not followed.
        behavior: (N,) log π_b.
        policy_versions: (N,) int64, the version v_b that sampled each token, ≤ v.
        version: v, the trainer's version before the step.
        progress: p, the share of the step's updates that π_θ has made.
    """
    import torch

    age = version - policy_versions
    # The assertion runs on the device: the host does not wait for its answer.
    torch._assert_async((age >= 0).all(), "a token from the future")
    if not progress:
        return current.detach().clamp(min=LOWEST)
    alpha = age / (age + progress)
    return behavior + alpha * (current.detach() - behavior).clamp(min=-MAX_LOG_RATIO)  # −∞ · 0 is no number
