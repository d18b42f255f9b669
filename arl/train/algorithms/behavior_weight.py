"""Weigh a loss by w = π_prox / π_behav, or leave out what strays too far: the recipe's section `objective.weight`.

log w of each token ─► of its level: the token, or its trajectory's mean or sum ─► criterion ─► inside [low, high]?
                    ─► the factor: w capped, w masked, or 1 inside and 0 outside ─► several sections: their product
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import field_validator, model_validator

from arl.config.section import Real, Section
from arl.train.algorithms.terms import MAX_LOG_RATIO, divergence

if TYPE_CHECKING:
    from torch import Tensor

Level = Literal["token", "sequence_mean", "sequence_product"]
DEFAULT_HIGH = 5.0


class Weight(Section):
    """Correct for the policy that sampled, by w = π_prox / π_behav."""

    level: Level | None = None
    """What has a weight. token: each token. sequence_mean: a trajectory, the geometric mean of its tokens' w.
    sequence_product: a trajectory, their product. null: what the objective's ratio belongs to."""
    mode: Literal["cap", "mask", "reject", "off"] = "cap"
    """The loss's factor. cap: w, between low and high. mask: w, but 0 outside. reject: 1, but 0 outside. off: 1."""
    criterion: Literal["ratio", "k1", "k2", "k3"] = "ratio"
    """What lies in [low, high]. ratio: w. k1, k2, k3: an estimate of KL(behavior ‖ proximal) in nats, −log w,
    (log w)² / 2 or w − 1 − log w, by its mean or sum over the trajectory; then `mask` keeps each token's own w."""
    low: Real | None = None
    """Lower bound. null: none."""
    high: Real | None = None
    """Upper bound. null: 5 with criterion ratio, none with the others."""
    denominator: Literal["kept", "narrowed"] = "kept"
    """Whether tokens outside stay in the number that normalizer tokens divides by. kept: they do. narrowed: not."""

    @field_validator("mode", mode="before")
    @classmethod
    def _off_is_a_word(cls, mode: Any) -> Any:
        """Accept false for off, because YAML 1.1 reads the word off as false."""
        return "off" if mode is False else mode

    @model_validator(mode="after")
    def _is_read(self) -> Self:
        place = "objective.weight"
        bounds = (self.low, self.high)
        if self.mode == "off" and (bounds != (None, None) or self.criterion != "ratio" or self.denominator != "kept"):
            raise ValueError(
                f"{place}.mode off: nothing reads low, high, criterion and denominator then; leave them out"
            )
        if self.mode == "cap" and self.criterion != "ratio":
            raise ValueError(f"{place}.criterion {self.criterion}: a divergence has no cap; use mode mask or reject")
        if self.mode == "cap" and self.denominator == "narrowed":
            raise ValueError(f"{place}.denominator narrowed: mode cap leaves nothing out; use mode mask or reject")
        if self.criterion == "ratio" and any(bound is not None and bound <= 0 for bound in bounds):
            raise ValueError(
                f"{place}: low {self.low} and high {self.high} are bounds of a ratio; give numbers above 0"
            )
        if self.criterion in ("k2", "k3") and self.upper <= 0:
            raise ValueError(f"{place}.high {self.upper:g}: {self.criterion} is never below 0; give a number above 0")
        if self.criterion != "ratio" and bounds == (None, None):
            raise ValueError(f"{place}.criterion {self.criterion}: has no default bounds; give low, high or both")
        if self.low is not None and self.low >= self.upper:
            raise ValueError(f"{place}.low {self.low:g}: must be less than high, which is {self.upper:g}")
        return self

    @property
    def upper(self) -> float:
        """Return the upper bound."""
        if self.high is not None:
            return self.high
        return DEFAULT_HIGH if self.criterion == "ratio" else float("inf")

    @property
    def lower(self) -> float:
        """Return the lower bound."""
        return -float("inf") if self.low is None else self.low


Weights = Weight | tuple[Weight, ...]


def weigh(
    log_weight: "Tensor", sequences: "Tensor", sections: Sequence[Weight], own_level: Level
) -> "tuple[Tensor, dict[str, Tensor]]":
    """Compute the factor of each token's loss, and what its metrics are made of.

    A log-weight above MAX_LOG_RATIO, of a token or of a trajectory, counts as that, so that sums of uncapped weights
    stay finite.

    Args:
        log_weight: (N,) log π_prox − log π_behav of each token.
        sequences: (N,) int64, the trajectory of each token.
        sections: each gives a factor.
        own_level: of the objective's ratio, for sections without a level.

    Returns:
        (N,) the product of the factors; and by name, (N,) each: `uncapped_weight` at the first section's level,
        `weight`, `is_capped`, outside of some bounds, and `is_kept`, left out by none.
    """
    factor = log_weight.new_ones(log_weight.shape)
    is_capped = factor.bool().logical_not()
    is_kept = factor.bool()
    uncapped = None
    for section in sections:
        level = section.level or own_level
        ratio = bounded_exp(over_level(log_weight, sequences, level))
        uncapped = ratio if uncapped is None else uncapped
        if section.mode == "off":
            continue
        compared = ratio
        if section.criterion != "ratio":
            compared = over_level(divergence(log_weight, section.criterion), sequences, level)
            ratio = bounded_exp(log_weight)
        is_outside = (compared < section.lower) | (compared > section.upper)
        is_capped = is_capped | is_outside
        if section.mode == "cap":
            factor = factor * ratio.clamp(section.low, section.upper)
        else:
            is_kept = is_kept & ~is_outside
            factor = factor * ratio if section.mode == "mask" else factor
    weight = factor.where(is_kept, 0.0)
    assert uncapped is not None, "there is a section"
    return weight, {"uncapped_weight": uncapped, "weight": weight, "is_capped": is_capped, "is_kept": is_kept}


def bounded_exp(log_ratio: "Tensor") -> "Tensor":
    """Compute exp(log_ratio), with log_ratio at most MAX_LOG_RATIO."""
    return log_ratio.clamp(max=MAX_LOG_RATIO).exp()


def over_level(column: "Tensor", sequences: "Tensor", level: Level) -> "Tensor":
    """Compute for each token its own number, or the mean or the sum over its trajectory, (N,)."""
    if level == "token":
        return column
    zeros = column.detach().new_zeros(column.shape)  # N places, because only the device knows the number of sequences
    totals = zeros.index_add(0, sequences, column)
    if level == "sequence_mean":
        totals = totals / zeros.index_add(0, sequences, zeros + 1).clamp(min=1)
    return totals.index_select(0, sequences)
