"""Derive the bytes that autograd keeps of one token in one decoder block, by train.checkpointing. Torch-free.

What a block keeps, of one token, with w = width, q and k = widths of queries and keys, m = width of the MLP, e = bytes
of a number in train.dtype. transformers computes norms in float32:

    norm (two)          its input in float32: 4w    normalized: ew    times the weight, the linear layers' input: ew
    norms of heads      inputs in float32: 4(q + k)    normalized: e(q + k)              Qwen3 alone
    attention           queries, keys, values and output: e(2q + 2k)    log of the sum of each head: 4 · heads
    MLP                 gate, its activation, up, and their product: 4em

The input of linear layers is what the row above it keeps. Rotary embedding and residual sums keep nothing, because
their derivatives need no input. With float32 a norm's input is the residual stream itself.
"""

from typing import Literal

from msgspec import Struct

from arl.data.model_limits import ModelShape

Checkpointing = Literal["none", "selective", "full"]
FLOAT32 = 4  # bytes of a number in which norms and attention's sums are computed


class BlockBytes(Struct, frozen=True):
    """Hold the bytes of one block and one token."""

    kept: int  # from the forward until the block's backward
    recomputed: int  # more, while the block's backward runs, because its forward is computed again
    gradients: int  # of activations, at most at one instant of the block's backward


def block_bytes(shape: ModelShape, item: int, checkpointing: Checkpointing, compiled: bool) -> BlockBytes:
    """Return the bytes of one block and one token.

    Args:
        item: bytes of a number in train.dtype.
    """
    needed = _compiled_bytes(shape, item) if compiled else _needed_bytes(shape, item)
    kept = {
        "none": needed,
        "selective": _selected_bytes(shape, item),
        "full": item * shape.width,  # the block's input
    }[checkpointing]
    return BlockBytes(
        kept=kept,
        recomputed=max(needed - kept, 0),
        gradients=_gradient_bytes(shape, item),
    )


def norm_bytes(shape: ModelShape, item: int) -> int:
    """Return what a norm keeps of one token, with its output, which the linear layers behind it keep."""
    root = FLOAT32  # one over the root of the mean square
    if shape.has_wide_norms:
        return 2 * FLOAT32 * shape.width + item * shape.width + root
    return FLOAT32 * shape.width + 2 * item * shape.width + root


def _needed_bytes(shape: ModelShape, item: int) -> int:
    """Return what the backward of a block needs, all that train.checkpointing none keeps."""
    attention = item * 2 * (shape.query_width + shape.key_width) + FLOAT32 * shape.heads
    mlp = 4 * item * shape.mlp_width
    return 2 * norm_bytes(shape, item) + _head_norm_bytes(shape, item) + attention + mlp


def _head_norm_bytes(shape: ModelShape, item: int) -> int:
    if not shape.has_normed_heads:
        return 0
    roots = FLOAT32 * (shape.heads + shape.kv_heads)
    return (FLOAT32 + item) * (shape.query_width + shape.key_width) + roots


def _selected_bytes(shape: ModelShape, item: int) -> int:
    """Return the block's input and what linear layers and attention return: see arl.train.sharding.KEPT."""
    attention = shape.query_width + 2 * shape.key_width + shape.query_width + shape.width
    mlp = 2 * shape.mlp_width + shape.width
    return item * (shape.width + attention + mlp) + FLOAT32 * shape.heads


def _compiled_bytes(shape: ModelShape, item: int) -> int:
    """Return what a compiled block keeps: operands of matrix products, and what attention needs and returns.

    Its compiler computes the rest again, within the kernels that need it. The block's input and the residual stream
    behind attention are kept, from which come the norms' derivatives; then the inputs of linear layers, gate and up.
    """
    widths = 4 * shape.width + 2 * (shape.query_width + shape.key_width) + 3 * shape.mlp_width
    roots = 0
    if shape.has_normed_heads:
        widths += shape.query_width + shape.key_width
        roots = FLOAT32 * (shape.heads + shape.kv_heads)
    return item * widths + FLOAT32 * shape.heads + roots


def _gradient_bytes(shape: ModelShape, item: int) -> int:
    """Return the gradients of activations that live together: behind the product of gate and up, or in a norm."""
    in_mlp = item * (shape.width + 2 * shape.mlp_width)
    in_norm = item * shape.width + 4 * FLOAT32 * shape.width
    return max(in_mlp, in_norm)
