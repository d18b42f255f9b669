"""Compute ratios, divergences, and the terms that any objective may have beside its own loss, of N tokens.

    log r = reference − current
    k1 = −log r     k2 = (log r)² / 2     k3 = r − 1 − log r     unbiased = k3 · exp(current − behavior)

k1, k2 and k3 are of http://joschu.net/blog/kl-approx.html.
"""

from typing import TYPE_CHECKING, Literal

from arl.config.objective_section import Statistic
from arl.config.reference_section import Estimator, Reference

if TYPE_CHECKING:
    from torch import Tensor

PARTS = ("mismatch", "staleness", "update")
PARTS_METRICS = {
    f"by_age/{kind}_{part}": Statistic(f"{kind}_{part}", "mean", by_age=True)
    for kind in ("log", "k3")
    for part in PARTS
}
LOWEST = -1e4  # of a log-probability that the trainer computed, because 0 · ∞ and ∞ − ∞ are no numbers
MAX_LOG_RATIO = 20.0  # exp(20) = 4.9e8; float32's exp overflows at 88.7


def bounded_ratio(log_ratio: "Tensor") -> "Tensor":
    """Compute the ratio u = exp(log_ratio), (N,), with the gradient u.

    A log-ratio above MAX_LOG_RATIO counts as MAX_LOG_RATIO in the value alone, and passes the derivative on. Otherwise
    the ratio overflows, and where a clip is chosen the backward multiplies its gradient 0 by the infinite ratio: NaN.
    """
    excess = (log_ratio.detach() - MAX_LOG_RATIO).clamp(min=0.0)
    return (log_ratio - excess).exp()


def divergence(log_ratio: "Tensor", kind: Literal["k1", "k2", "k3"]) -> "Tensor":
    """Estimate KL(p ‖ q) at each token that p sampled, from log q − log p, (N,).

    k3 is computed with expm1, because r − 1 loses all digits of a small log r: in float32, 43 % of the estimates at
    |log r| = 1e-4 were negative. A log-ratio beyond ±MAX_LOG_RATIO counts as that and has no gradient, so that the
    estimate is finite.
    """
    bounded = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if kind == "k1":
        return -bounded
    if kind == "k2":
        return bounded.square() / 2
    return (bounded.expm1() - bounded).clamp(min=0.0)


def kl_terms(kl: Estimator, current: "Tensor", reference: "Tensor | None", behavior: "Tensor") -> "Tensor":
    """Estimate KL(current ‖ reference) at each token, (N,), with the gradient that `current` has.

    Args:
        kl: see arl.config.reference_section.Reference.
        behavior: of the policy that sampled the tokens.
    """
    assert reference is not None, "the column reference_logprobs is missing, and a term reads it"
    if kl == "unbiased":
        return divergence(reference - current, "k3") * bounded_ratio(current - behavior)
    return divergence(reference - current, kl)


def penalized(advantages: "Tensor", behavior: "Tensor", reference: "Tensor | None", section: Reference) -> "Tensor":
    """Subtract the reference's term from the advantages of tokens, (N,): place reward.

    The estimate is of the policy that sampled, so it is known before the step, and the same in each minibatch.
    """
    return advantages - section.coefficient * kl_terms(section.kl, behavior, reference, behavior)


def ratio_parts(current: "Tensor", proximal: "Tensor", sampled: "Tensor", behavior: "Tensor") -> "dict[str, Tensor]":
    """Take current / behavior apart, by the version that sampled and the version before the step: see PARTS_METRICS."""
    logs = {"mismatch": sampled - behavior, "staleness": proximal - sampled, "update": current - proximal}
    estimates = {f"k3_{part}": divergence(log, "k3") for part, log in logs.items()}
    return {f"log_{part}": log for part, log in logs.items()} | estimates
