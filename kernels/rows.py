"""Computes statistics and gradient of a row of logits, from which all log-probabilities here are made.

    u_v = (z_v − max z) / temperature,   s = Σ exp u_v
    logprob = u_y − log s                entropy = log s − Σ u_v exp u_v / s
    d logprob / d z_v = (1[v = y] − exp(u_v − log s)) / temperature

Differences from the row's own maximum keep the error that of small logits, however large the logits are; as s ≥ 1,
logprob ≤ 0 and entropy ≥ 0 but for rounding. Computed in float32 (float64 of float64) whatever the logits' type;
by Triton on CUDA, by PyTorch in chunks of rows on CPU.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

CHUNK_BYTES = 1 << 24  # workspace of one chunk of rows on CPU; about what a cache holds


def row_stats(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Reads the logits once.

    Args:
        logits: (M, V), any floating type; the elements of a row adjacent. −inf rules a token out.
        targets: (M,) int64 in [0, V).
        temperature: > 0.

    Returns:
        logprob (M,) ≤ 0, entropy (M,) ≥ 0, and the normalizer (2, M), max z and log s, for `row_gradient`.
    """
    assert logits.ndim == 2 and targets.shape == logits.shape[:1] and targets.dtype == torch.int64
    assert temperature > 0, f"temperature {temperature}: it divides the logits, so it must be positive"
    if logits.is_cuda:
        from arl.kernels.triton_rows import row_stats as compute
    else:
        compute = _row_stats
    logprob, entropy, normalizer = compute(logits, targets, temperature)
    # Rounding of log s may leave +1e-7 on a certain token; anything more is a wrong kernel. The assertion runs on the
    # device, because waiting for its answer would leave the device idle.
    torch._assert_async(~(logprob > 1e-4).any(), "a log-probability above 0")
    return logprob.clamp_(max=0.0), entropy.clamp_(min=0.0), normalizer


def row_gradient(
    logits: Tensor, targets: Tensor, normalizer: Tensor, coefficient: Tensor, temperature: float, out: Tensor
) -> None:
    """Write coefficient · d logprob / d logits to `out`.

    A ruled-out token gets 0, unless it is the target: then its own logit gets the coefficient, as from log_softmax.

    Args:
        logits, targets, temperature: as `row_stats` took them.
        normalizer: (2, M), as `row_stats` returned it.
        coefficient: (M,), d loss / d logprob.
        out: like logits; may be logits itself.
    """
    if logits.is_cuda:
        from arl.kernels.triton_rows import row_gradient as compute
    else:
        compute = _row_gradient
    compute(logits, targets, normalizer, coefficient, temperature, out)


def chunks(num_rows: int, at_most: int) -> Iterator[slice]:
    """Cut rows into equal runs of at most max(1, at_most); no rows make one empty run."""
    number = max(1, -(-num_rows // max(1, at_most)))
    step = -(-num_rows // number)
    return (slice(i * step, min((i + 1) * step, num_rows)) for i in range(number))


def _row_stats(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    logprob, entropy, peak, log_total = results = logits.new_empty(4, len(logits), dtype=wide)
    for rows in chunks(len(logits), CHUNK_BYTES // (4 * logits.shape[1])):
        highest = logits[rows].amax(-1).to(wide)
        peak[rows] = highest.masked_fill_(highest == float("-inf"), 0.0)
        u = _differences(logits[rows], peak[rows], temperature)
        chosen = u.gather(1, targets[rows, None])[:, 0]
        e = u.exp()
        total = e.sum(-1)
        log_total[rows] = total.log()
        logprob[rows] = chosen - log_total[rows]
        entropy[rows] = log_total[rows] - e.mul_(u.masked_fill_(u == float("-inf"), 0.0)).sum(-1) / total
    return logprob.clone(), entropy.clone(), results[2:]


def _row_gradient(
    logits: Tensor, targets: Tensor, normalizer: Tensor, coefficient: Tensor, temperature: float, out: Tensor
) -> None:
    for rows in chunks(len(logits), CHUNK_BYTES // (4 * logits.shape[1])):
        scaled = (coefficient[rows] / temperature)[:, None]
        u = _differences(logits[rows], normalizer[0, rows], temperature)
        p = u.sub_(normalizer[1, rows, None]).exp_()
        out[rows] = p.mul_(-scaled).scatter_add_(1, targets[rows, None], scaled)


def _differences(logits: Tensor, peak: Tensor, temperature: float) -> Tensor:
    return (logits.to(peak.dtype) - peak[:, None]).div_(temperature)
