"""Compute M2PO, which leaves out the tokens that make the policies' second moment too large; arXiv 2510.01161, §4.

m = (log π_prox − log π_behav)² of each token
left out: the largest m of the tokens given, until the mean of the others is at most `second_moment`
loss = −w · min(u A, clip(u) A), as decoupled PPO, at the others
"""

from typing import TYPE_CHECKING

from arl.config.objective_section import Statistic
from arl.config.section import PositiveFloat
from arl.train.algorithms.around_proximal import DECOUPLED_METRICS
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.algorithms.objective import TokenColumns

if TYPE_CHECKING:
    from torch import Tensor


M2PO_METRICS = {**DECOUPLED_METRICS, "objective/left_out": Statistic("objective/left_out", "mean")}


class M2PO(DecoupledPPO):
    """Leave out a micro-batch's most off-policy tokens, so that the rest is near (arXiv 2510.01161)."""

    metrics = M2PO_METRICS

    kind: str = "m2po"
    """The short name of this class."""
    second_moment: PositiveFloat = 0.04
    """Largest mean of m; the paper's."""

    @property
    def needs_sequences(self) -> bool:
        return True  # which tokens are left out depends on all of the micro-batch

    def loss(self, tokens: TokenColumns) -> "tuple[Tensor, dict[str, Tensor]]":
        import torch

        loss, values = super().loss(tokens)
        moments = (self.center(tokens) - tokens.behavior_logprobs).square()
        ascending, order = moments.sort()
        counts = torch.arange(1, len(moments) + 1, device=moments.device)
        is_left_out = torch.empty_like(order, dtype=torch.bool)
        is_left_out[order] = ascending.cumsum(0) > self.second_moment * counts  # the mean up to a token only grows
        return loss.masked_fill(is_left_out, 0.0), values | {"objective/left_out": is_left_out}
