"""GSPO, arXiv 2507.18071, eqs. 5 and 7, decoupled: ratio and weight belong to a whole trajectory.

u = exp(mean over the sequence's tokens of (current − proximal))
w = exp(mean over the sequence's tokens of (proximal − behavior)), capped, masked or 1
loss = −w · min(u A, clip(u) A) at each token of the sequence, whose mean counts
"""

from typing import TYPE_CHECKING, Any

from pydantic import model_validator

from arl.config.objective_section import Normalizer
from arl.config.section import PositiveFloat
from arl.train.algorithms.around_proximal import AroundProximal
from arl.train.algorithms.behavior_weight import over_level
from arl.train.algorithms.clipping import ClipLow, Clipped, check_columns, clipped_gain
from arl.train.algorithms.objective import TokenColumns

if TYPE_CHECKING:
    from torch import Tensor


class GSPO(Clipped, AroundProximal):
    """Clip whole trajectories around the proximal policy, by means over their tokens (arXiv 2507.18071).

    Its clip bounds have no defaults (the paper has 3e-4 and 4e-4), because PPO's are far too wide for such means.
    """

    scope = "sequence"
    zero_advantage_is_zero_gradient = True

    kind: str = "gspo"
    """The short name of this class."""
    normalizer: Normalizer = "sequence_means"
    """As its paper does, so that each trajectory counts once."""
    clip_low: ClipLow
    """ε_low; 3e-4 in the paper."""
    clip_high: PositiveFloat
    """ε_high; 4e-4 in the paper."""

    @model_validator(mode="before")
    @classmethod
    def _asks_for_its_own_bounds(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and not {"clip_low", "clip_high"} <= fields.keys():
            raise ValueError(
                "objective.kind gspo: give clip_low and clip_high (arXiv 2507.18071: 3e-4 and 4e-4); PPO's defaults "
                "are for tokens, and the mean over a trajectory hardly ever meets them"
            )
        return fields

    def loss(self, tokens: TokenColumns) -> "tuple[Tensor, dict[str, Tensor]]":
        proximal = self.center(tokens)
        check_columns(tokens, proximal)
        log_ratio = tokens.current_logprobs - proximal
        log_weight = proximal - tokens.behavior_logprobs
        gain, values = clipped_gain(
            over_level(log_ratio, tokens.sequences, "sequence_mean"),
            tokens.advantages,
            self.clip_low,
            self.clip_high,
            self.dual_clip,
        )
        weight, weight_values = self.weigh(tokens, log_weight)
        return -weight * gain, values | weight_values | self.divergences(tokens, log_ratio, log_weight)
