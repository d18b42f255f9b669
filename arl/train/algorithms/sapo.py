"""Compute SAPO, which lets a token's gradient fade as its ratio leaves 1; arXiv 2511.20347, eq. 5.

u = exp(current − proximal)
gain = (4 / τ) σ(τ (u − 1)) A, with τ_positive where A > 0 and τ_negative elsewhere
loss = −w · gain
"""

from typing import TYPE_CHECKING

from arl.config.section import PositiveFloat
from arl.train.algorithms.around_proximal import DECOUPLED_METRICS, AroundProximal
from arl.train.algorithms.clipping import check_columns
from arl.train.algorithms.objective import TokenColumns
from arl.train.algorithms.terms import bounded_ratio

if TYPE_CHECKING:
    from torch import Tensor


SMOOTH_METRICS = {name: value for name, value in DECOUPLED_METRICS.items() if "clip" not in name}


class SAPO(AroundProximal):
    """Replace the clip by a smooth gate, whose gradient is that of u A at u = 1 (arXiv 2511.20347)."""

    scope = "token"
    zero_advantage_is_zero_gradient = True
    metrics = SMOOTH_METRICS

    kind: str = "sapo"
    """The short name of this class."""
    tau_positive: PositiveFloat = 1.0
    """τ of advantages above 0."""
    tau_negative: PositiveFloat = 1.05
    """τ of other advantages."""

    def loss(self, tokens: TokenColumns) -> "tuple[Tensor, dict[str, Tensor]]":
        proximal = self.center(tokens)
        check_columns(tokens, proximal)
        log_ratio = tokens.current_logprobs - proximal
        log_weight = proximal - tokens.behavior_logprobs
        ratio = bounded_ratio(log_ratio)
        positive = tokens.advantages > 0
        tau = ratio.new_full(ratio.shape, self.tau_negative).masked_fill(positive, self.tau_positive)
        gain = 4 / tau * (tau * (ratio - 1)).sigmoid() * tokens.advantages
        weight, weight_values = self.weigh(tokens, log_weight)
        values = {"ratio": ratio.detach()} | weight_values | self.divergences(tokens, log_ratio, log_weight)
        return -weight * gain, values
