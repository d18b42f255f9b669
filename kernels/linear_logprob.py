"""Compute log-probability and entropy of one token per row from hidden states; (M, V) logits are never stored.

The forward takes 2·M·V·D FLOPs, and the backward 6·M·V·D, because it computes the logits again. A loss that is a sum
over rows needs 6·M·V·D in all: see linear_policy_loss.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from arl.kernels.head import HeadGradient, check_head, logit_chunks
from arl.kernels.logprob import packed_logprob_ref
from arl.kernels.rows import RowGradient, row_gradient, row_stats


def linear_logprob(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    logits_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute log-probability of `targets` and entropy under softmax(hidden @ weightᵀ / temperature).

    Args:
        hidden: (M, D).
        weight: (V, D), hidden's type.
        targets: (M,) int64.
        temperature: > 0.
        logits_dtype: hidden's type (None), or float32: see `logit_chunks`.

    Returns:
        logprob (M,) ≤ 0 and entropy (M,) ≥ 0, float32 (float64 of float64), with gradients to hidden and weight.
    """
    check_head(hidden, weight, targets)
    logprob, entropy = _LinearLogprob.apply(hidden, weight, targets, temperature, logits_dtype or hidden.dtype)  # type: ignore[no-untyped-call]
    return logprob, entropy


def linear_logprob_ref(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    logits_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the same from all logits at once."""
    dtype = logits_dtype or hidden.dtype
    return packed_logprob_ref(hidden.to(dtype) @ weight.to(dtype).T, targets, temperature)


class _LinearLogprob(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        logits_dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        logprobs = []
        entropies = []
        normalizers = []
        for rows, z, _ in logit_chunks(hidden, weight, logits_dtype, with_gradient=False):
            chunk_logprob, chunk_entropy, chunk_normalizer = row_stats(z, targets[rows], temperature)
            logprobs.append(chunk_logprob)
            entropies.append(chunk_entropy)
            normalizers.append(chunk_normalizer)
        logprob = torch.cat(logprobs)
        entropy = torch.cat(entropies)
        normalizer = torch.cat(normalizers, -1)
        ctx.save_for_backward(hidden, weight, targets, normalizer, entropy)
        ctx.temperature = temperature
        ctx.logits_dtype = logits_dtype
        ctx.set_materialize_grads(False)  # so that an entropy nobody reads costs nothing
        return logprob, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_logprob: Tensor | None, of_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, normalizer, entropy = ctx.saved_tensors
        of_hidden, of_weight, *_ = ctx.needs_input_grad
        gradient = HeadGradient(hidden, weight, of_hidden=of_hidden, of_weight=of_weight)
        if of_logprob is None:
            of_logprob = torch.zeros_like(entropy)
        for rows, z, dz in logit_chunks(hidden, weight, ctx.logits_dtype, with_gradient=True):
            of_rows = RowGradient(
                of_logprob=of_logprob[rows],
                of_entropy=None if of_entropy is None else of_entropy[rows],
                entropy=entropy[rows],
            )
            row_gradient(z, targets[rows], normalizer[:, rows], of_rows, ctx.temperature, out=dz)
            gradient.add(rows, dz)
        del z, dz  # frees the chunk, so that the rounded d weight can take its memory
        dweight = None if gradient.weight is None else gradient.weight.to(weight.dtype)
        return gradient.hidden, dweight, None, None, None


def linear_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    logits_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute what `linear_logprob` does of K targets in each row, (M, K): logprobs (M, K), entropy (M,)."""
    check_head(hidden, weight, targets[:, 0])
    logprobs, entropy = _LinearLogprobs.apply(hidden, weight, targets, temperature, logits_dtype or hidden.dtype)  # type: ignore[no-untyped-call]
    return logprobs, entropy


@torch.no_grad()
def linear_top_logprobs(
    hidden: Tensor,
    weight: Tensor,
    k: int,
    vocab: int,
    temperature: float = 1.0,
    logits_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the k likeliest tokens of each row, without gradient: ids (M, k), likeliest first, and logprobs (M, k).

    Args:
        vocab: only tokens below it are given.
    """
    ids = []
    logprobs = []
    for _, z, _ in logit_chunks(hidden, weight, logits_dtype or hidden.dtype, with_gradient=False):
        own = z[:, :vocab].topk(k).indices
        ids.append(own)
        logprobs.append(_chosen(z, own, row_stats(z, own[:, 0].contiguous(), temperature)[2], temperature))
    return torch.cat(ids), torch.cat(logprobs)


class _LinearLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        logits_dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        chunks = []
        for rows, z, _ in logit_chunks(hidden, weight, logits_dtype, with_gradient=False):
            _, of_rows, log_sums = row_stats(z, targets[rows, 0].contiguous(), temperature)
            chunks.append((_chosen(z, targets[rows], log_sums, temperature), of_rows, log_sums))
        logprobs, entropy = (torch.cat([chunk[i] for chunk in chunks]) for i in range(2))
        normalizer = torch.cat([chunk[2] for chunk in chunks], -1)
        ctx.save_for_backward(hidden, weight, targets, normalizer, entropy, logprobs)
        ctx.temperature = temperature
        ctx.logits_dtype = logits_dtype
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_logprobs: Tensor, of_entropy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, normalizer, entropy, logprobs = ctx.saved_tensors
        of_hidden, of_weight, *_ = ctx.needs_input_grad
        gradient = HeadGradient(hidden, weight, of_hidden=of_hidden, of_weight=of_weight)
        sums = of_logprobs.sum(-1)
        for rows, z, dz in logit_chunks(hidden, weight, ctx.logits_dtype, with_gradient=True):
            of_rows = RowGradient(of_logprob=sums[rows], of_entropy=of_entropy[rows], entropy=entropy[rows])
            ids = targets[rows]
            row_gradient(z, ids[:, 0].contiguous(), normalizer[:, rows], of_rows, ctx.temperature, out=dz)
            # That is right but at the targets, where it took all of the sum for the first one's.
            own = ((ids[:, :, None] == ids[:, None, :]) * of_logprobs[rows, None, :]).sum(-1)
            logp = logprobs[rows]
            others = sums[rows, None] + of_entropy[rows, None] * (logp + entropy[rows, None])
            dz.scatter_(1, ids, ((own - logp.exp() * others) / ctx.temperature).to(dz.dtype))
            gradient.add(rows, dz)
        del z, dz  # as above
        dweight = None if gradient.weight is None else gradient.weight.to(weight.dtype)
        return gradient.hidden, dweight, None, None, None


def _chosen(logits: Tensor, ids: Tensor, normalizer: Tensor, temperature: float) -> Tensor:
    """Return the logprobs of some tokens of each row, (m, K) of ids (m, K), by the normalizer of row_stats."""
    peak, log_total = normalizer[..., None]
    chosen: Tensor = (logits.gather(1, ids).to(peak.dtype) - peak) / temperature - log_total
    return chosen.clamp(max=0.0)
