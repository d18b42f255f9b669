"""Compute log-probability of one token per row and the row's entropy from logits, without a (M, V) float32 tensor.

logprob = z_y − log Σ exp z, entropy = −Σ p log p, with z = logits / temperature and p = softmax(z). For the backward
only the logits and two numbers a row are kept.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from arl.kernels.rows import RowGradient, row_gradient, row_stats


def packed_logprob(
    logits: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Compute log-probability of `targets` and entropy under softmax(logits / temperature).

    Args:
        logits: (M, V), any floating type, the elements of a row adjacent; −inf rules a token out.
        targets: (M,) int64. One that is ruled out has logprob −inf.
        temperature: > 0.

    Returns:
        logprob (M,) ≤ 0 and entropy (M,) ≥ 0, float32 (float64 for float64 logits), with gradients.
    """
    logprob, entropy = _PackedLogprob.apply(logits, targets, temperature)  # type: ignore[no-untyped-call]
    return logprob, entropy


def packed_logprob_ref(
    logits: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Compute the same by PyTorch's log_softmax."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    logp = torch.log_softmax(wide / temperature, -1)
    finite_logp = logp.masked_fill(logp == float("-inf"), 0.0)
    entropy = -(logp.exp() * finite_logp).sum(-1)
    chosen = logp.gather(1, targets[:, None])[:, 0]
    return chosen, entropy


class _PackedLogprob(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        targets: Tensor,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        logprob, entropy, normalizer = row_stats(logits, targets, temperature)
        ctx.save_for_backward(logits, targets, normalizer, entropy)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)  # so that an entropy nobody reads costs nothing
        return logprob, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_logprob: Tensor | None, of_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        logits, targets, normalizer, entropy = ctx.saved_tensors
        out = torch.empty_like(logits)
        gradient = RowGradient(
            of_logprob=torch.zeros_like(entropy) if of_logprob is None else of_logprob,
            of_entropy=of_entropy,
            entropy=entropy,
        )
        row_gradient(logits, targets, normalizer, gradient, ctx.temperature, out)
        return out, None, None
