"""Compute a linear recurrence backwards in time, in every segment at once: y_t = x_t + decay_t · y_{t+1}.

Generalized advantage estimation is one: x = r_t + γ V_{t+1} − V_t, decay = γλ (arXiv 1506.02438, eq. 16). The steps
(decay, x) compose associatively, (a, x) ∘ (b, y) = (ab, x + ay), so ⌈log₂ longest⌉ rounds that double the distance
are enough. There are only sums and products, so a decay of 0 is exact.
"""

import itertools

import torch
from torch import Tensor


def segment_scan(x: Tensor, decay: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Compute y_t = x_t + decay_t · y_{t+1}, where y after a segment's last element is 0. It has no gradient.

    Args:
        x: (N,) float32 or float64, finite.
        decay: (N,) like x, |decay| ≤ 1; a segment's last one is not used.
        cu_seqlens: (B + 1,) int32, where the segments begin, and N; segments may be empty.

    Returns:
        y (N,) like x.
    """
    assert x.ndim == 1
    assert x.shape == decay.shape
    assert x.dtype == decay.dtype
    assert cu_seqlens.ndim == 1
    assert cu_seqlens.dtype == torch.int32, f"cu_seqlens is {cu_seqlens.dtype}, and must be torch.int32"
    assert len(cu_seqlens) >= 1
    if x.is_cuda:
        from arl.kernels.triton_scan import segment_scan as compute
    else:
        compute = _segment_scan
    return compute(x.detach(), decay.detach(), cu_seqlens)


def segment_scan_ref(x: Tensor, decay: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Compute the same by a plain loop in float64."""
    y = torch.zeros(len(x), dtype=torch.float64)
    for start, stop in itertools.pairwise(cu_seqlens.tolist()):
        after = 0.0
        for t in reversed(range(start, stop)):
            after = x[t].item() + decay[t].item() * after
            y[t] = after
    return y


def _segment_scan(x: Tensor, decay: Tensor, cu_seqlens: Tensor) -> Tensor:
    covered = (int(cu_seqlens[0]), int(cu_seqlens[-1]))
    assert covered == (0, len(x)), f"the offsets cover {covered} of {len(x)} elements"
    lengths = cu_seqlens.diff()
    longest = int(lengths.max()) if len(lengths) else 0
    ends = cu_seqlens[1:].long()
    last_elements = ends[lengths > 0] - 1
    y = x.clone()
    a = decay.clone()
    a[last_elements] = 0.0  # nothing comes from beyond a segment
    distance = 1
    while distance < longest:
        y[:-distance] += a[:-distance] * y[distance:]
        a[:-distance] *= a[distance:].clone()
        distance *= 2
    return y
