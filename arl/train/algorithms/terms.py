"""Compute the terms that any objective may have beside its own loss, of N tokens: pure functions of columns.

    log r = reference − current
    k1 = −log r     k2 = (log r)² / 2     k3 = r − 1 − log r     unbiased = k3 · exp(current − behavior)

k1, k2 and k3 are of http://joschu.net/blog/kl-approx.html.
"""

from typing import TYPE_CHECKING

from arl.config.objective_section import Statistic
from arl.config.reference_section import Reference

if TYPE_CHECKING:
    from torch import Tensor

PARTS = ("mismatch", "staleness", "update")
PARTS_METRICS = {
    f"by_age/{kind}_{part}": Statistic(f"{kind}_{part}", "mean", by_age=True)
    for kind in ("log", "k3")
    for part in PARTS
}
MOST_LOG_RATIO = 20.0  # exp(20) = 4.9e8; float32's exp overflows at 88.7


def kl_terms(kl: str, current: "Tensor", reference: "Tensor | None", behavior: "Tensor") -> "Tensor":
    """Estimate KL(current ‖ reference) at each token, (N,), with the gradient that `current` has.

    Args:
        kl: see arl.config.reference_section.Reference.
        behavior: of the policy that sampled the tokens.
    """
    assert reference is not None, "the column reference_logprobs is missing, and a term reads it"
    log_ratio = _bounded(reference - current)
    if kl == "k1":
        return -log_ratio
    if kl == "k2":
        return log_ratio.square() / 2
    k3 = _k3(log_ratio)
    return k3 if kl == "k3" else k3 * _bounded(current - behavior).exp()


def penalized(advantages: "Tensor", behavior: "Tensor", reference: "Tensor | None", section: Reference) -> "Tensor":
    """Subtract the reference's term from the advantages of tokens, (N,): place reward.

    The estimate is of the policy that sampled, so it is known before the step, and the same in each minibatch.
    """
    return advantages - section.coefficient * kl_terms(section.kl, behavior, reference, behavior)


def ratio_parts(current: "Tensor", proximal: "Tensor", sampled: "Tensor", behavior: "Tensor") -> "dict[str, Tensor]":
    """Take current / behavior apart, by the version that sampled and the version before the step: see PARTS_METRICS."""
    logs = {"mismatch": sampled - behavior, "staleness": proximal - sampled, "update": current - proximal}
    estimates = {f"k3_{part}": _k3(_bounded(log)) for part, log in logs.items()}
    return {f"log_{part}": log for part, log in logs.items()} | estimates


def _k3(log_ratio: "Tensor") -> "Tensor":
    """Compute r − 1 − log r, but not as r − 1, which loses all digits of a small log r."""
    return log_ratio.expm1() - log_ratio


def _bounded(log_ratio: "Tensor") -> "Tensor":
    """Bound the value; the gradient flows as if it were not bounded."""
    return log_ratio - (log_ratio - log_ratio.clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO)).detach()
