"""Implement `arl.kernels.rows`, which has the formulas, in Triton. Both kernels are bound by memory bandwidth."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from arl.kernels.rows import RowGradient

# One load of a row has LANES × WIDTH logits. 8 bfloat16 are the 16 bytes that a thread can load at once.
WIDTH = tl.constexpr(8)
# The first of each is the choice where nothing can be measured. Which one is fastest depends on the device, the size
# of the vocabulary and the type of the logits: Triton measures them at the first use, and keeps the result on disk.
STATS_CONFIGS = [
    triton.Config({"LANES": 512}, num_warps=4),
    triton.Config({"LANES": 256}, num_warps=4),
    triton.Config({"LANES": 512}, num_warps=8),
    triton.Config({"LANES": 1024}, num_warps=8),
]
GRADIENT_CONFIGS = [  # BLOCK is the logits whose gradient one program writes
    triton.Config({"BLOCK": 4096}, num_warps=4),
    triton.Config({"BLOCK": 1024}, num_warps=4),
    triton.Config({"BLOCK": 2048}, num_warps=4),
    triton.Config({"BLOCK": 4096}, num_warps=8),
    triton.Config({"BLOCK": 8192}, num_warps=8),
]
IS_INTERPRETED = triton.knobs.runtime.interpret  # then there is no device to measure on
# A program reads one number of each of these, so their alignment is no reason to compile the kernel again.
PER_ROW = ["targets", "peak", "log_total", "of_logprob", "of_entropy", "entropy"]
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


def row_stats(
    logits: Tensor,
    targets: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `rows.row_stats`. A target outside [0, V) gives NaN."""
    _check(logits)
    num_rows, vocab = logits.shape
    results = logits.new_empty(4, num_rows, dtype=torch.float32)
    if num_rows:
        row_stats_kernel[(num_rows,)](
            logits,
            targets,
            results,
            logits.stride(0),
            num_rows,
            vocab,
            1 / temperature,
        )
    logprob, entropy = results[:2]
    normalizer = results[2:]
    return logprob.clone(), entropy.clone(), normalizer


def row_gradient(
    logits: Tensor,
    targets: Tensor,
    normalizer: Tensor,
    gradient: RowGradient,
    temperature: float,
    out: Tensor,
) -> None:
    """Compute `rows.row_gradient`."""
    _check(logits)
    _check(out)
    num_rows, vocab = logits.shape
    peak, log_total = normalizer
    has_entropy = gradient.of_entropy is not None
    of_entropy = gradient.of_logprob if gradient.of_entropy is None else gradient.of_entropy  # then it is not read
    if num_rows:
        row_gradient_kernel[lambda chosen: (num_rows * triton.cdiv(vocab, chosen["BLOCK"]),)](
            logits,
            targets,
            peak.contiguous(),
            log_total.contiguous(),
            gradient.of_logprob.contiguous(),
            of_entropy.contiguous(),
            gradient.entropy.contiguous(),
            out,
            logits.stride(0),
            out.stride(0),
            vocab,
            1 / temperature,
            HAS_ENTROPY=has_entropy,
        )


def _check(logits: Tensor) -> None:
    assert logits.dtype in (torch.float32, torch.bfloat16, torch.float16), f"no kernel for {logits.dtype} on CUDA"
    assert logits.stride(1) == 1 or logits.shape[1] == 1, (
        f"strides {logits.stride()}: the elements of a row must be adjacent"
    )


def configs_to_measure(configs: list[triton.Config], *_: object, **__: object) -> list[triton.Config]:
    """Return the first one alone in torch's deterministic mode, because a sum depends on the size of its blocks."""
    return configs[:1] if torch.are_deterministic_algorithms_enabled() else configs


@triton.autotune(
    STATS_CONFIGS[:1] if IS_INTERPRETED else STATS_CONFIGS,
    key=["vocab"],
    prune_configs_by={"early_config_prune": configs_to_measure},
    cache_results=True,
)
@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=PER_ROW)
def row_stats_kernel(logits, targets, results, stride, num_rows, vocab, inverse_temperature, LANES: tl.constexpr):
    """Run one program per row, which reads it once.

    Each lane has its own maximum and sums, so the loop exchanges nothing.
    """
    row = tl.program_id(0)
    logits += row.to(tl.int64) * stride
    scale = inverse_temperature * LOG2_E
    peak = tl.full((LANES,), float("-inf"), tl.float32)
    total = tl.zeros((LANES,), tl.float32)  # Σ 2^u
    moment = tl.zeros((LANES,), tl.float32)  # Σ u 2^u, with u = (z − peak) · log₂e / temperature
    columns = tl.arange(0, LANES)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    for start in tl.range(0, vocab, LANES * WIDTH):
        mask = start + columns < vocab
        z = tl.load(logits + start + columns, mask=mask, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(peak, tl.max(z, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        u = (z - base[:, None]) * scale
        e = tl.exp2(u)
        peak, total, moment = _rebase(peak, total, moment, base, scale)
        total += tl.sum(e, 1)
        finite_u = tl.where(u == float("-inf"), 0.0, u)
        moment += tl.sum(finite_u * e, 1)
        peak = higher
    top = tl.max(peak, 0)
    top = tl.where(top == float("-inf"), 0.0, top)
    peak, total, moment = _rebase(peak, total, moment, top, scale)
    sum_all = tl.sum(total, 0)
    log_total = tl.log2(sum_all) * LN_2
    target = tl.load(targets + row)
    in_vocab = (target >= 0) & (target < vocab)
    chosen = tl.load(logits + target, mask=in_vocab, other=float("nan")).to(tl.float32)
    logprob = (chosen - top) * inverse_temperature - log_total
    entropy = log_total - tl.sum(moment, 0) / sum_all * LN_2
    tl.store(results + row, logprob)
    tl.store(results + num_rows + row, entropy)
    tl.store(results + 2 * num_rows + row, top)
    tl.store(results + 3 * num_rows + row, log_total)


@triton.jit
def _rebase(peak, total, moment, base, scale):
    """Turn sums of differences from `peak` into sums of differences from `base` ≥ peak."""
    shift = tl.where(peak == float("-inf"), 0.0, (peak - base) * scale)  # an empty sum stays 0
    factor = tl.exp2(shift)
    moment = tl.where(factor == 0.0, 0.0, (moment + shift * total) * factor)  # shift may have overflowed to −inf
    return base, total * factor, moment


@triton.autotune(
    GRADIENT_CONFIGS[:1] if IS_INTERPRETED else GRADIENT_CONFIGS,
    key=["vocab"],
    restore_value=["logits"],  # the output may take their place, and each measurement needs them again
    cache_results=True,
)
@triton.jit(do_not_specialize_on_alignment=PER_ROW)
def row_gradient_kernel(
    logits,
    targets,
    peak,
    log_total,
    of_logprob,
    of_entropy,
    entropy,
    out,
    stride,
    out_stride,
    vocab,
    inverse_temperature,
    HAS_ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Run one program per block of a row. In place is safe, because one thread reads and writes each element."""
    program = tl.program_id(0)
    blocks = tl.cdiv(vocab, BLOCK)
    row = program // blocks
    columns = (program % blocks) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < vocab
    logits += row.to(tl.int64) * stride
    out += row.to(tl.int64) * out_stride
    scaled = tl.load(of_logprob + row).to(tl.float32) * inverse_temperature
    z = tl.load(logits + columns, mask=mask, other=float("-inf")).to(tl.float32)
    log_p = (z - tl.load(peak + row)) * inverse_temperature - tl.load(log_total + row)
    p = tl.exp2(log_p * LOG2_E)
    of_target = tl.where(columns == tl.load(targets + row), scaled, 0.0)
    if HAS_ENTROPY:
        scaled_entropy = tl.load(of_entropy + row).to(tl.float32) * inverse_temperature
        finite_log_p = tl.where(log_p == float("-inf"), 0.0, log_p)
        scaled += scaled_entropy * (finite_log_p + tl.load(entropy + row))
    d = of_target - scaled * p
    tl.store(out + columns, d.to(out.dtype.element_ty), mask=mask)
