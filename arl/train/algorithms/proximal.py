"""Choose where π_prox comes from: a forward pass before the minibatches, or A-3PO's interpolation."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from arl.config.section import PositiveFloat
from arl.train.algorithms.objective import Objective

if TYPE_CHECKING:
    from torch import Tensor

    from arl.train.algorithms.objective import TokenColumns

ClipLow = Annotated[float, Field(gt=0, lt=1)]


class AroundProximal(Objective):
    """Holds what objectives share that are centered on the proximal policy."""

    columns = ("proximal_logprobs",)

    proximal: Literal["recompute", "loglinear"] = "recompute"
    """π_prox by a forward pass before the minibatches, or by A-3PO's interpolation, which needs none."""
    behavior_weight_cap: PositiveFloat = 5.0
    """w = min(π_prox / π_behav, cap)."""

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
