"""Compute a policy loss from hidden states, and its gradient in the forward: 6·M·V·D FLOPs instead of 8.

    rows of hidden ─► logits ─► logprob, entropy ─► row loss ─► RowGradient ─► d logits ─► d hidden, d weight

Once advantages, proximal log-probabilities and the normalizer are known, a policy loss is a sum over tokens. So a
chunk's gradient needs nothing of the other chunks, and its logits are not computed again in the backward.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from arl.kernels.head import HeadGradient, check_head, logit_chunks
from arl.kernels.logprob import packed_logprob_ref
from arl.kernels.rows import RowGradient, row_gradient, row_stats

Kept = tuple[Tensor, ...]
# row_loss(logprob (m,), entropy (m,), rows) -> (loss summed over these rows (), tensors to keep, each with one axis).
# The loss must be a sum over rows; it is differentiated by logprob and, if it reads it, by entropy. `rows` says which
# rows of all M these are.
RowLoss = Callable[[Tensor, Tensor, slice], tuple[Tensor, Kept]]
# loss, logprob, entropy, and what row_loss kept
LossAndStats = tuple[Tensor, Tensor, Tensor, Kept]


def linear_policy_loss(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    row_loss: RowLoss,
    temperature: float = 1.0,
    logits_dtype: torch.dtype | None = None,
) -> LossAndStats:
    """Compute the loss of one token per row, under softmax(hidden @ weightᵀ / temperature).

    Args:
        hidden: (M, D).
        weight: (V, D), hidden's type.
        targets: (M,) int64.
        row_loss: called for each chunk of rows, in order, at least once; see RowLoss. Everything that it reads beside
            logprob and entropy is a constant.
        temperature: > 0.
        logits_dtype: hidden's type (None), or float32: see `logit_chunks`.

    Returns:
        loss (), which carries the gradient to hidden and weight; logprob (M,) ≤ 0 and entropy (M,) ≥ 0, float32
        (float64 for float64), without gradient; and the tensors that row_loss returned, concatenated over chunks.
    """
    check_head(hidden, weight, targets)
    # ctx.needs_input_grad does not know of torch.no_grad().
    needs_gradients = torch.is_grad_enabled()
    results = _LinearPolicyLoss.apply(  # type: ignore[no-untyped-call]
        hidden,
        weight,
        targets,
        row_loss,
        temperature,
        logits_dtype or hidden.dtype,
        needs_gradients and hidden.requires_grad,
        needs_gradients and weight.requires_grad,
    )
    loss, logprob, entropy, *kept = results
    return loss, logprob, entropy, tuple(kept)


def linear_policy_loss_ref(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    row_loss: RowLoss,
    temperature: float = 1.0,
    logits_dtype: torch.dtype | None = None,
) -> LossAndStats:
    """Compute the same from all logits at once."""
    dtype = logits_dtype or hidden.dtype
    logprob, entropy = packed_logprob_ref(hidden.to(dtype) @ weight.to(dtype).T, targets, temperature)
    loss, kept = row_loss(logprob, entropy, slice(0, len(hidden)))
    return loss, logprob.detach(), entropy.detach(), kept


class _LinearPolicyLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        row_loss: RowLoss,
        temperature: float,
        logits_dtype: torch.dtype,
        of_hidden: bool,
        of_weight: bool,
    ) -> tuple[Tensor, ...]:
        gradient = HeadGradient(hidden, weight, of_hidden=of_hidden, of_weight=of_weight)
        wanted = of_hidden or of_weight
        losses = []
        chunks_of_vectors = []
        for rows, z, dz in logit_chunks(hidden, weight, logits_dtype, with_gradient=wanted):
            logprob, entropy, normalizer = row_stats(z, targets[rows], temperature)
            loss, kept, of_rows = _differentiate(row_loss, logprob, entropy, rows, wanted)
            losses.append(loss)
            chunks_of_vectors.append((logprob, entropy, *kept))
            if of_rows is not None:
                row_gradient(z, targets[rows], normalizer, of_rows, temperature, out=dz)
                gradient.add(rows, dz)
        total = torch.stack(losses).sum()
        vectors = [torch.cat(chunks) for chunks in zip(*chunks_of_vectors, strict=True)]
        ctx.save_for_backward(gradient.hidden, gradient.weight)
        ctx.weight_dtype = weight.dtype
        ctx.mark_non_differentiable(*vectors)
        return total, *vectors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        dhidden, dweight = ctx.saved_tensors
        if dhidden is not None:
            dhidden = dhidden * grad
        if dweight is not None:
            rounded = torch.empty_like(dweight, dtype=ctx.weight_dtype)
            dweight = torch.mul(dweight, grad, out=rounded)
        return dhidden, dweight, None, None, None, None, None, None


def _differentiate(
    row_loss: RowLoss,
    logprob: Tensor,
    entropy: Tensor,
    rows: slice,
    wanted: bool,
) -> tuple[Tensor, Kept, RowGradient | None]:
    """Return the loss of these rows, the tensors to keep, and the loss's derivatives, if they are wanted."""
    with torch.set_grad_enabled(wanted):
        logprob = logprob.detach().requires_grad_(wanted)
        leaf = entropy.detach().requires_grad_(wanted)
        loss, kept = row_loss(logprob, leaf, rows)
        gradient = None
        if wanted:
            of_logprob, of_entropy = torch.autograd.grad(loss, (logprob, leaf), allow_unused=True)
            assert of_logprob is not None, "a loss that does not read the log-probabilities"
            gradient = RowGradient(of_logprob, of_entropy, entropy)
    detached = tuple(x.detach() for x in kept)
    return loss.detach(), detached, gradient
