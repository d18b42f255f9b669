"""Computes a linear output head, logits = hidden @ weightᵀ, in chunks of rows. The fused functions share this.

The products are cuBLAS's (or the CPU's). Only one chunk of logits exists at a time, and its gradient overwrites it. A
chunk is as large as its bound allows, because each chunk reads and writes the whole float32 d weight once. On an H200
with V = 151,936, 4,096 rows take 1.24 GB, and that traffic is a few percent of the products.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from arl.kernels.rows import chunks

CHUNK_BYTES = {"cuda": 5 << 28, "cpu": 1 << 26}  # size of one chunk of logits
MULTIPLE = {
    "cuda": 8,
    "cpu": 1,
}  # logits between the starts of rows: cuBLAS is slow if a row does not begin at 16 bytes


def check_head(hidden: Tensor, weight: Tensor, targets: Tensor) -> None:
    """Assert that shapes and types agree: hidden (M, D), weight (V, D), targets (M,)."""
    assert hidden.ndim == weight.ndim == 2 and hidden.shape[1] == weight.shape[1], (hidden.shape, weight.shape)
    assert hidden.dtype == weight.dtype, f"hidden is {hidden.dtype}, weight {weight.dtype}: cast one of them"
    assert targets.shape == hidden.shape[:1]


def logit_chunks(hidden: Tensor, weight: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield rows and their logits (m, V), in the type of hidden. The caller may overwrite them; the next chunk does."""
    vocab = len(weight)
    multiple = MULTIPLE[hidden.device.type]
    buffer = hidden.new_empty(0)
    for rows in chunks(len(hidden), CHUNK_BYTES[hidden.device.type] // (vocab * weight.element_size())):
        if not buffer.numel():  # the first chunk is the longest
            buffer = hidden.new_empty(rows.stop, -(-vocab // multiple) * multiple)
            buffer[:, vocab:] = 0.0  # PyTorch's bfloat16 product on a CPU reads the padding and multiplies it by 0
            buffer = buffer[:, :vocab]
        logits = buffer[: rows.stop - rows.start]
        yield rows, torch.mm(hidden[rows], weight.T, out=logits)


class HeadGradient:
    """Adds up the gradients of hidden and weight from chunks of d logits.

    hidden: (M, D), hidden's type; None if it is not wanted.
    weight: (V, D) float32 (float64 for float64); None if it is not wanted.
    """

    def __init__(self, hidden: Tensor, weight: Tensor, of_hidden: bool, of_weight: bool) -> None:
        wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
        self._inputs = hidden, weight
        self.hidden = torch.empty_like(hidden) if of_hidden else None
        self.weight = torch.empty_like(weight, dtype=wide) if of_weight else None
        self._beta = 0  # of the next product; 0 for the first, which has no sum to add to and need not read one

    def add(self, rows: slice, dlogits: Tensor) -> None:
        """Add the gradient of some rows' logits, dlogits (m, V)."""
        hidden, weight = self._inputs
        if self.hidden is not None:
            torch.mm(dlogits, weight, out=self.hidden[rows])
        if self.weight is None:
            return
        beta, self._beta = self._beta, 1
        if self.weight.dtype == weight.dtype:
            self.weight.addmm_(dlogits.T, hidden[rows], beta=beta)
        elif weight.is_cuda:  # the tensor cores add in float32, so nothing is rounded in between
            sums = self.weight
            torch.addmm(sums, dlogits.T, hidden[rows], beta=beta, out_dtype=sums.dtype, out=sums)
        else:  # a CPU has no such product: the product of each chunk is rounded once
            product = dlogits.T @ hidden[rows]
            self.weight.add_(product) if beta else self.weight.copy_(product)
