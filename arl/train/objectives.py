"""Policy objectives. Pure functions of per-token log-probabilities; N loss tokens, all tensors (N,) float32.

u = exp(current − proximal)      ratio, carries the gradient
w = exp(proximal − behavior)     behavior_weight, constant and capped
loss = −Σ w · min(u A, clip(u, 1 − ε_low, 1 + ε_high) A)
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
    ratio = torch.exp(current - proximal)
    log_weight = proximal - behavior
    weight = torch.exp(log_weight)
    gain = ratio * advantages
    clipped_gain = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    loss = -(weight.clamp(max=behavior_weight_cap) * torch.minimum(gain, clipped_gain)).sum()
    return loss, TokenStats(
        ratio=ratio.detach(),
        clipped=(clipped_gain < gain).detach(),
        behavior_weight=weight.clamp(max=behavior_weight_cap),
        capped=weight > behavior_weight_cap,
        kl=weight - 1 - log_weight,
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


def loglinear_proximal(current: Tensor, behavior: Tensor, policy_versions: Tensor, version: int) -> Tensor:
    """log π_prox = log π_b + α (log π_θ − log π_b), α = (v − v_b) / (v + 1 − v_b); A-3PO, arXiv 2512.06547.

    A token sampled by the policy being trained (v_b = v) has α = 0, an old one nearly 1.

    Args:
        policy_versions: (N,) int64, the version v_b that sampled each token, ≤ v.
        version: v, the trainer's version before the step.
    """
    age = version - policy_versions
    assert policy_versions.shape == current.shape and bool((age >= 0).all()), "a token from the future"
    alpha = age / (age + 1.0)
    return behavior + alpha * (current.detach() - behavior)


def _check(current: Tensor, proximal: Tensor, behavior: Tensor, advantages: Tensor) -> None:
    assert current.ndim == 1 and current.shape == proximal.shape == behavior.shape == advantages.shape
    assert not (proximal.requires_grad or behavior.requires_grad or advantages.requires_grad)
