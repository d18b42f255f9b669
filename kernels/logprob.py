"""Log-probability of one token per row, and the row's entropy, without a second (T, V) float32 tensor.

logprob = z_y − lse(z), entropy = lse(z) − Σ p z, with z = logits / temperature, computed in float32 in chunks of
rows. Only the logits themselves and one lse per row are kept for the backward.
"""

from typing import Any

import torch
from torch import Tensor

CHUNK_BYTES = 1 << 24  # float32 workspace of one chunk of rows


def token_logprob(logits: Tensor, targets: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probability of `targets` and entropy under softmax(logits / temperature).

    Args:
        logits: (T, V) float32, bfloat16 or float64, rows contiguous; −inf rules a token out.
        targets: (T,) int64.
        temperature: > 0.

    Returns:
        logprob (T,) ≤ 0 and entropy (T,) ≥ 0, float32 (float64 for float64 logits). Only logprob carries a gradient.
    """
    assert logits.ndim == 2 and targets.shape == logits.shape[:1] and targets.dtype == torch.int64
    assert temperature > 0
    logprob, entropy = _TokenLogprob.apply(logits, targets, temperature)  # type: ignore[no-untyped-call]
    return logprob, entropy


def token_logprob_ref(logits: Tensor, targets: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """The same by PyTorch's log_softmax."""
    logp = torch.log_softmax((logits if logits.dtype == torch.float64 else logits.float()) / temperature, -1)
    entropy = -(logp.exp() * logp.masked_fill(logp == float("-inf"), 0.0)).sum(-1)
    return logp.gather(1, targets[:, None])[:, 0], entropy.detach()


class _TokenLogprob(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
        logprob, entropy, lse = (logits.new_empty(len(logits), dtype=wide) for _ in range(3))
        for rows in _chunks(logits):
            z = logits[rows].to(wide) / temperature
            lse[rows] = z.logsumexp(-1)
            logprob[rows] = z.gather(1, targets[rows, None])[:, 0] - lse[rows]
            p = (z - lse[rows, None]).exp_()
            entropy[rows] = lse[rows] - p.mul_(z.masked_fill_(z == float("-inf"), 0.0)).sum(-1)
        # Rounding of z_y − lse may leave +1e-7 on a certain token; anything more is a wrong kernel.
        assert not logits.numel() or not (logprob > 1e-4).any(), "a log-probability above 0"
        logprob.clamp_(max=0.0)
        ctx.save_for_backward(logits, targets, lse)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy)
        return logprob, entropy.clamp_(min=0.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """d logprob / d logits = (1[v = y] − p) / temperature."""
        logits, targets, lse = ctx.saved_tensors
        out = torch.empty_like(logits)
        for rows in _chunks(logits):
            scaled = (grad[rows] / ctx.temperature)[:, None]
            p = (logits[rows].to(lse.dtype) / ctx.temperature).sub_(lse[rows, None]).exp_()
            d = p.mul_(-scaled).scatter_add_(1, targets[rows, None], scaled)
            out[rows] = d.to(logits.dtype)
        return out, None, None


def _chunks(logits: Tensor) -> list[slice]:
    step = max(1, CHUNK_BYTES // (4 * logits.shape[1]))
    return [slice(i, i + step) for i in range(0, len(logits), step)]
