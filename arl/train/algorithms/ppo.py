"""Policy objectives. Pure functions of per-token log-probabilities; N loss tokens, all tensors (N,) float32.

u = exp(current − proximal)      ratio, carries the gradient
w = exp(proximal − behavior)     behavior_weight, constant and capped
loss = −Σ w · min(u A, clip(u, 1 − ε_low, 1 + ε_high) A)

Over tokens; GSPO's u and w belong to a sequence: the geometric means over its tokens, and its sum is over sequences.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class TokenStats(NamedTuple):
    """What one objective saw, per token, without gradient."""

    ratio: Tensor  # (N,) u
    clipped: Tensor  # (N,) bool, the clip removed this token's gradient
    behavior_weight: Tensor  # (N,) w after the cap
    capped: Tensor  # (N,) bool
    kl: Tensor  # (N,) estimate of KL(behavior ‖ proximal), ≥ 0


def decoupled_ppo(
    current: Tensor,
    proximal: Tensor,
    behavior: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    behavior_weight_cap: float,
) -> tuple[Tensor, TokenStats]:
    """Decoupled PPO: clip around the proximal policy, weigh by proximal / behavior; AReaL, arXiv 2505.24298, eq. 5.

    The KL estimate is k3 of http://joschu.net/blog/kl-approx.html with samples of the behavior policy.

    Returns:
        The loss summed over tokens, (), and TokenStats.
    """
    _check(current, proximal, behavior, advantages)
    return _weighed_and_clipped(
        current - proximal, proximal - behavior, advantages, clip_low, clip_high, behavior_weight_cap
    )


def naive_ppo(
    current: Tensor, behavior: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> tuple[Tensor, TokenStats]:
    """PPO clipped around the behavior policy, arXiv 1707.06347, eq. 7: decoupled PPO whose π_prox is π_behav, w = 1."""
    return decoupled_ppo(
        current,
        behavior,
        behavior,
        advantages,
        clip_low=clip_low,
        clip_high=clip_high,
        behavior_weight_cap=float("inf"),
    )


def gspo(
    current: Tensor,
    proximal: Tensor,
    behavior: Tensor,
    advantages: Tensor,
    sequences: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    behavior_weight_cap: float,
) -> tuple[Tensor, TokenStats]:
    """GSPO, arXiv 2507.18071, eqs. 5 and 7, decoupled: a sequence's u is exp of the mean of current − proximal over its
    tokens, its w exp of that of proximal − behavior.

    Args:
        advantages: equal within a sequence.
        sequences: (N,) int64 in [0, N), the sequence of each token, in any order; all of its tokens are here.

    Returns:
        The loss summed over sequences, (), and TokenStats, in which a token has what its sequence has.
    """
    _check(current, proximal, behavior, advantages)
    assert sequences.shape == current.shape
    none = torch.zeros_like(behavior)  # N places, since only the device knows how many sequences there are
    lengths = none.index_add(0, sequences, torch.ones_like(behavior)).clamp(min=1)
    log_weight = proximal - behavior
    loss, stats = _weighed_and_clipped(
        none.index_add(0, sequences, current - proximal) / lengths,
        none.index_add(0, sequences, log_weight) / lengths,
        none.scatter(0, sequences, advantages),
        clip_low,
        clip_high,
        behavior_weight_cap,
    )
    of_tokens = TokenStats(*(x.index_select(0, sequences) for x in stats))
    return loss, of_tokens._replace(kl=torch.exp(log_weight) - 1 - log_weight)


def loglinear_proximal(current: Tensor, behavior: Tensor, policy_versions: Tensor, version: int) -> Tensor:
    """log π_prox = log π_b + α (log π_θ − log π_b), α = (v − v_b) / (v + 1 − v_b); A-3PO, arXiv 2512.06547.

    A token sampled by the policy being trained (v_b = v) has α = 0, an old one nearly 1.

    Args:
        policy_versions: (N,) int64, the version v_b that sampled each token, ≤ v.
        version: v, the trainer's version before the step.
    """
    age = version - policy_versions
    assert policy_versions.shape == current.shape
    torch._assert_async((age >= 0).all(), "a token from the future")  # nobody waits for the device's answer
    alpha = age / (age + 1.0)
    return behavior + alpha * (current.detach() - behavior)


def _weighed_and_clipped(
    log_ratio: Tensor, log_weight: Tensor, advantages: Tensor, clip_low: float, clip_high: float, cap: float
) -> tuple[Tensor, TokenStats]:
    ratio, weight = torch.exp(log_ratio), torch.exp(log_weight)
    gain = ratio * advantages
    clipped_gain = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    capped_weight = weight.clamp(max=cap)
    loss = -(capped_weight * torch.minimum(gain, clipped_gain)).sum()
    return loss, TokenStats(
        ratio=ratio.detach(),
        clipped=(clipped_gain < gain).detach(),
        behavior_weight=capped_weight,
        capped=weight > cap,
        kl=weight - 1 - log_weight,
    )


def _check(current: Tensor, proximal: Tensor, behavior: Tensor, advantages: Tensor) -> None:
    assert current.ndim == 1 and current.shape == proximal.shape == behavior.shape == advantages.shape
    assert not (proximal.requires_grad or behavior.requires_grad or advantages.requires_grad)
