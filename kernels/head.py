"""Compute a linear output head, logits = hidden @ weightᵀ, in chunks of rows. The fused functions share this.

The products are cuBLAS's (or the CPU's). Only one chunk of logits exists at a time, and its gradient overwrites it,
unless logits are float32 and all else is not. A chunk is as large as its bound allows, because each chunk reads and
writes the whole float32 d weight once. On an H200 with V = 151,936, 4,096 rows take 1.24 GB, and that traffic is a few
percent of the products.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from arl.kernels.rows import chunks

CHUNK_BYTES = {"cuda": 5 << 28, "cpu": 1 << 26}  # size of one chunk of logits
# The number of logits between the starts of rows is a multiple of this. cuBLAS is slow unless rows begin at 16 bytes.
MULTIPLE = {"cuda": 8, "cpu": 1}


def check_head(hidden: Tensor, weight: Tensor, targets: Tensor) -> None:
    """Assert that shapes and types agree: hidden (M, D), weight (V, D), targets (M,)."""
    assert hidden.ndim == weight.ndim == 2, (hidden.shape, weight.shape)
    assert hidden.shape[1] == weight.shape[1], (hidden.shape, weight.shape)
    assert hidden.dtype == weight.dtype, f"hidden is {hidden.dtype}, weight {weight.dtype}: cast one of them"
    assert targets.shape == hidden.shape[:1]


def wide_product(hidden: Tensor, weight: Tensor) -> Tensor:
    """Compute hidden (m, D) @ weightᵀ, weight (V, D), in float32: (m, V). Inputs are of one type, at most float32 wide.

    A GPU's tensor cores add in float32 anyway, so only the result is wider. A CPU has no such product: inputs are cast.
    """
    if hidden.is_cuda and hidden.dtype != torch.float32:
        return torch.mm(hidden, weight.T, out_dtype=torch.float32)
    return hidden.float() @ weight.float().T


class LogitChunk(NamedTuple):
    """Hold the logits of some rows, and the place for their gradient."""

    rows: slice
    logits: Tensor  # (m, V); the next chunk overwrites them
    gradient: Tensor  # (m, V), in hidden's type: the logits themselves, unless they are wider


def logit_chunks(
    hidden: Tensor,
    weight: Tensor,
    logits_dtype: torch.dtype,
    *,
    with_gradient: bool,
) -> Iterator[LogitChunk]:
    """Compute logits, some rows after the other.

    Args:
        hidden, weight: as `check_head` took them.
        logits_dtype: hidden's type, or float32. Logits of 16 to 32 in bfloat16 are off by up to 0.06, and so are
            log-probabilities. Their gradient has no such error: it is relative, so it is kept in hidden's type.
        with_gradient: make room for the gradient of wider logits.
    """
    vocab = len(weight)
    is_wider = logits_dtype != hidden.dtype
    has_own_gradient = is_wider and with_gradient
    row_bytes = vocab * (logits_dtype.itemsize + has_own_gradient * hidden.element_size())
    most_rows = CHUNK_BYTES[hidden.device.type] // row_bytes
    wide_weight = weight.to(logits_dtype) if is_wider and not hidden.is_cuda else weight
    logits: Tensor | None = None
    for rows in chunks(len(hidden), most_rows):
        num_rows = rows.stop - rows.start
        if logits is None:  # the first chunk is the longest
            logits = _empty_logits(hidden, logits_dtype, num_rows, vocab)
            gradient = _empty_logits(hidden, hidden.dtype, num_rows, vocab) if has_own_gradient else logits
        _multiply(hidden[rows], wide_weight, out=logits[:num_rows])
        yield LogitChunk(rows, logits[:num_rows], gradient[:num_rows])


def _multiply(hidden: Tensor, weight: Tensor, out: Tensor) -> None:
    """Write hidden @ weightᵀ to `out`, whose type may be wider. A CPU has no such product: inputs are cast."""
    if hidden.dtype == out.dtype:
        torch.mm(hidden, weight.T, out=out)
    elif hidden.is_cuda:
        torch.mm(hidden, weight.T, out_dtype=out.dtype, out=out)
    else:
        torch.mm(hidden.to(out.dtype), weight.T, out=out)


def _empty_logits(hidden: Tensor, dtype: torch.dtype, num_rows: int, vocab: int) -> Tensor:
    """Allocate (num_rows, vocab) logits whose rows begin at a multiple of MULTIPLE."""
    multiple = MULTIPLE[hidden.device.type]
    padded_vocab = -(-vocab // multiple) * multiple
    buffer = hidden.new_empty(num_rows, padded_vocab, dtype=dtype)
    buffer[:, vocab:] = 0.0  # PyTorch's bfloat16 product on a CPU reads the padding and multiplies it by 0
    return buffer[:, :vocab]


class HeadGradient:
    """Add up the gradients of hidden and weight from chunks of d logits.

    hidden: (M, D), hidden's type; None if it is not wanted.
    weight: (V, D) float32 (float64 for float64); None if it is not wanted.
    """

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        *,
        of_hidden: bool,
        of_weight: bool,
    ) -> None:
        wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
        self._hidden_input = hidden
        self._weight_input = weight
        self.hidden = torch.empty_like(hidden) if of_hidden else None
        self.weight = torch.empty_like(weight, dtype=wide) if of_weight else None
        self._has_sum = False  # the first product has no sum to add to, and `weight` is not yet written

    def add(self, rows: slice, dlogits: Tensor) -> None:
        """Add the gradient of some rows' logits, dlogits (m, V)."""
        if self.hidden is not None:
            torch.mm(dlogits, self._weight_input, out=self.hidden[rows])
        if self.weight is not None:
            self._add_to_weight(self.weight, dlogits, self._hidden_input[rows])
            self._has_sum = True

    def _add_to_weight(self, sums: Tensor, dlogits: Tensor, hidden: Tensor) -> None:
        """Add dlogitsᵀ @ hidden to the sums, or write it there first."""
        beta = 1 if self._has_sum else 0
        if sums.dtype == hidden.dtype:
            sums.addmm_(dlogits.T, hidden, beta=beta)
        elif hidden.is_cuda:  # the tensor cores add in float32, so nothing is rounded in between
            torch.addmm(sums, dlogits.T, hidden, beta=beta, out_dtype=sums.dtype, out=sums)
        else:  # a CPU has no such product: the product of each chunk is rounded once
            product = dlogits.T @ hidden
            if self._has_sum:
                sums.add_(product)
            else:
                sums.copy_(product)
