"""Implement `arl.kernels.scan` in Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


def segment_scan(x: Tensor, decay: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Compute `scan.segment_scan`. The host does not read cu_seqlens."""
    y = torch.empty_like(x)
    num_segments = len(cu_seqlens) - 1
    if num_segments:
        segment_scan_kernel[(num_segments,)](
            x.contiguous(),
            decay.contiguous(),
            cu_seqlens,
            y,
            BLOCK=BLOCK,
        )
    return y


@triton.jit
def segment_scan_kernel(x, decay, cu_seqlens, y, BLOCK: tl.constexpr):
    """Run one program per segment, from its last block to its first."""
    segment = tl.program_id(0)
    start = tl.load(cu_seqlens + segment)
    length = tl.load(cu_seqlens + segment + 1) - start
    after = tl.full((), 0.0, x.dtype.element_ty)  # y of the element after this block
    for i in tl.range(0, tl.cdiv(length, BLOCK)):
        first = length - (i + 1) * BLOCK  # below 0 in the block that begins before the segment
        offsets = first + tl.arange(0, BLOCK)
        mask = offsets >= 0
        has_next = mask & (offsets < length - 1)
        a = tl.load(decay + start + offsets, mask=has_next, other=0.0)
        b = tl.load(x + start + offsets, mask=mask, other=0.0)
        a, b = tl.associative_scan((a, b), 0, _compose, reverse=True)
        b += a * after
        tl.store(y + start + offsets, b, mask=mask)
        first_y = tl.where(offsets == first, b, 0.0)
        after = tl.sum(first_y, 0)


@triton.jit
def _compose(a_later, b_later, a, b):
    """Compose two steps of the recurrence; in a reverse scan the later one comes first."""
    return a * a_later, b + a * b_later
