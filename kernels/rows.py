"""Compute statistics and gradient of a row of logits, from which all log-probabilities here are made.

    u_v = (z_v − max z) / temperature,   s = Σ exp u_v
    logprob = u_y − log s                entropy = log s − Σ u_v exp u_v / s
    log p_v = u_v − log s
    d logprob / d z_v = (1[v = y] − p_v) / temperature
    d entropy / d z_v = −p_v (log p_v + entropy) / temperature

Because all numbers are differences from the row's own maximum, large logits have no larger error than small ones.
Because s ≥ 1, logprob ≤ 0 and entropy ≥ 0, up to rounding. The type of the computation is float32 whatever that of the
logits is, and float64 for float64 logits. Triton computes on CUDA, and PyTorch on the CPU, in chunks of rows.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK_BYTES = 1 << 24  # workspace of one chunk of rows on CPU; about what a cache holds
TUNED_ROWS = 512  # several for each multiprocessor; their logits are more than a GPU's cache holds


class RowGradient(NamedTuple):
    """Hold what the derivative of a loss by the logits of M rows follows from."""

    of_logprob: Tensor  # (M,) d loss / d logprob
    of_entropy: Tensor | None  # (M,) d loss / d entropy; None: the loss does not read the entropy
    entropy: Tensor  # (M,) as `row_stats` returned it


def row_stats(
    logits: Tensor,
    targets: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute log-probability, entropy and normalizer of each row, in one pass over the logits.

    Args:
        logits: (M, V), any floating type; the elements of a row adjacent. −inf rules a token out.
        targets: (M,) int64 in [0, V).
        temperature: > 0.

    Returns:
        logprob (M,) ≤ 0, entropy (M,) ≥ 0, and the normalizer (2, M), max z and log s, for `row_gradient`; none
        carries a gradient.
    """
    assert logits.ndim == 2
    assert targets.shape == logits.shape[:1]
    assert targets.dtype == torch.int64
    assert temperature > 0, f"temperature {temperature}: it divides the logits, so it must be positive"
    if logits.is_cuda:
        from arl.kernels.triton_rows import row_stats as compute
    else:
        compute = _row_stats
    logprob, entropy, normalizer = compute(logits, targets, temperature)
    # Rounding of log s may leave +1e-7 on a certain token; anything more is a wrong kernel. The assertion runs on the
    # device, because waiting for its answer would leave the device idle.
    is_wrong = (logprob > 1e-4).any()
    torch._assert_async(~is_wrong, "a log-probability above 0")
    logprob.clamp_(max=0.0)
    entropy.clamp_(min=0.0)
    return logprob, entropy, normalizer


def row_gradient(
    logits: Tensor,
    targets: Tensor,
    normalizer: Tensor,
    gradient: RowGradient,
    temperature: float,
    out: Tensor,
) -> None:
    """Write gradient.of_logprob · d logprob / d logits + gradient.of_entropy · d entropy / d logits to `out`.

    A ruled-out token gets 0, unless it is the target: then its own logit gets the coefficient, as from log_softmax.

    Args:
        logits, targets, temperature: as `row_stats` took them.
        normalizer: (2, M), as `row_stats` returned it.
        out: like logits; may be logits itself.
    """
    if logits.is_cuda:
        from arl.kernels.triton_rows import row_gradient as compute
    else:
        compute = _row_gradient
    compute(logits, targets, normalizer, gradient, temperature, out)


def tune_rows(
    vocab: int,
    logits_dtype: torch.dtype,
    gradient_dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Let Triton choose its block sizes by measurement on scratch logits; does nothing on a CPU.

    It would do so at the first use anyway, but then memory is full, and it needs a copy of the logits.
    """
    if device.type != "cuda":
        return
    logits = torch.randn(TUNED_ROWS, vocab, device=device, dtype=logits_dtype)
    targets = torch.zeros(TUNED_ROWS, dtype=torch.int64, device=device)
    logprob, entropy, normalizer = row_stats(logits, targets, 1.0)
    row_gradient(logits, targets, normalizer, RowGradient(logprob, None, entropy), 1.0, out=logits.to(gradient_dtype))


def chunks(num_rows: int, at_most: int) -> Iterator[slice]:
    """Cut rows into equal runs of at most max(1, at_most); no rows make one empty run."""
    limit = max(1, at_most)
    num_chunks = max(1, _divide_up(num_rows, limit))
    step = _divide_up(num_rows, num_chunks)
    for i in range(num_chunks):
        start = i * step
        yield slice(start, min(start + step, num_rows))


def _divide_up(a: int, b: int) -> int:
    return -(-a // b)


def _cached_chunks(logits: Tensor) -> Iterator[slice]:
    """Cut the rows of logits so that the float32 workspace of a chunk fits the cache."""
    num_rows, vocab = logits.shape
    return chunks(num_rows, CHUNK_BYTES // (4 * vocab))


def _row_stats(
    logits: Tensor,
    targets: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor, Tensor]:
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    results = logits.new_empty(4, len(logits), dtype=wide)
    logprob, entropy, peak, log_total = results
    for rows in _cached_chunks(logits):
        highest = logits[rows].amax(-1).to(wide)
        highest.masked_fill_(highest == float("-inf"), 0.0)
        u = _differences(logits[rows], highest, temperature)
        chosen = u.gather(1, targets[rows, None])[:, 0]
        e = u.exp()
        total = e.sum(-1)
        log_sum = total.log()
        u.masked_fill_(u == float("-inf"), 0.0)  # a ruled-out token adds 0 to the entropy
        moment = e.mul_(u).sum(-1)
        logprob[rows] = chosen - log_sum
        entropy[rows] = log_sum - moment / total
        peak[rows] = highest
        log_total[rows] = log_sum
    return logprob.clone(), entropy.clone(), results[2:]


def _row_gradient(
    logits: Tensor,
    targets: Tensor,
    normalizer: Tensor,
    gradient: RowGradient,
    temperature: float,
    out: Tensor,
) -> None:
    peak, log_total = normalizer
    for rows in _cached_chunks(logits):
        scaled = (gradient.of_logprob[rows] / temperature)[:, None]
        log_p = _differences(logits[rows], peak[rows], temperature).sub_(log_total[rows, None])
        if gradient.of_entropy is None:
            dlogits = log_p.exp_().mul_(-scaled)
        else:
            scaled_entropy = (gradient.of_entropy[rows] / temperature)[:, None]
            dlogits = _with_entropy(log_p, gradient.entropy[rows, None], scaled, scaled_entropy)
        dlogits.scatter_add_(1, targets[rows, None], scaled)
        out[rows] = dlogits


def _with_entropy(log_p: Tensor, entropy: Tensor, scaled: Tensor, scaled_entropy: Tensor) -> Tensor:
    """Return −p (scaled + scaled_entropy (log p + entropy)), (m, V); 0 for a ruled-out token. Overwrites log_p."""
    p = log_p.exp()
    log_p.masked_fill_(log_p == float("-inf"), 0.0)
    return log_p.add_(entropy).mul_(scaled_entropy).add_(scaled).mul_(p).neg_()


def _differences(logits: Tensor, peak: Tensor, temperature: float) -> Tensor:
    return (logits.to(peak.dtype) - peak[:, None]).div_(temperature)
