"""Derive the bytes that one trainer rank allocates on its device, and the instant of an update at which they are most.

    instant     weights, moments   gathered   gradients   activations   block   head       collectives
    loss               ×              ×           ×            ×                 ×
    backward           ×              ×           ×            ×          ×      d weight
    reduce             ×                                                                       ×

An update has little of its own: AdamW works in place on what is sharded. In between two steps only weights and moments
stay. Everything is a pure function of the model's sizes and of the recipe's section `train`.

What autograd keeps of one token in one decoder block, with w = width, q and k = widths of queries and keys, m = width
of the MLP, e = bytes of a number in train.dtype. transformers computes norms in float32:

    norm (two)          its input in float32: 4w    normalized: ew    times the weight, the linear layers' input: ew
    norms of heads      inputs in float32: 4(q + k)    normalized: e(q + k)              Qwen3 alone
    attention           queries, keys, values and output: e(2q + 2k)    log of the sum of each head: 4 · heads
    MLP                 gate, its activation, up, and their product: 4em

The input of linear layers is what the row above it keeps. Rotary embedding and residual sums keep nothing, because
their derivatives need no input. With float32 a norm's input is the residual stream itself.
"""

from dataclasses import dataclass
from typing import Literal

from transformers import PreTrainedModel

from arl.config.recipe import Recipe, Train
from arl.data.model_limits import ModelShape
from arl.kernels import head, rows
from arl.models.load import DTYPES
from arl.train import sharding

FLOAT32 = 4  # bytes of a number in which norms and attention's sums are computed
MOMENTS_BYTES = 8  # of AdamW's two moments of a parameter
CPU_ROW_WORKSPACES = 2.25  # float32 copies of a chunk of rows in arl.kernels.rows on a CPU, and a mask of bytes


@dataclass(frozen=True)
class ParameterCounts:
    """Count the parameters of a model by the units in which FSDP2 gathers them."""

    total: int
    largest_block: int  # 0: the blocks are gathered together with the root
    root: int  # embedding, last norm and head, and blocks that are too small for a unit

    @classmethod
    def of(cls, model: PreTrainedModel) -> "ParameterCounts":
        """Count those of a model, which may be on the meta device."""
        total = sum(p.numel() for p in model.parameters())
        blocks = [sum(p.numel() for p in block.parameters()) for block in model.model.layers]
        units = [size for size in blocks if size >= sharding.WORTH_A_COLLECTIVE]
        return cls(total, max(units, default=0), total - sum(units))


@dataclass(frozen=True)
class Workload:
    """Say what one update computes on a rank.

    Args:
        tokens: packed tokens of its largest micro-batch.
        accumulates: the update has several micro-batches, so that one meets the gradients of another.
        device: where it computes, because the head's chunks differ.
    """

    tokens: int
    accumulates: bool
    device: Literal["cuda", "cpu"]


def workload(recipe: Recipe, longest: int, on_gpus: bool) -> Workload:
    """Return the most that one update may ask of a rank: answers of full length behind the longest prompt."""
    train = recipe.train
    answer = recipe.rollout.max_new_tokens
    size = recipe.rollout.group_size
    shares_prompts = train.packing == "balanced"
    of_group = longest - answer + size * answer if shares_prompts else size * longest
    tokens = recipe.rollout.problems_per_step * of_group // (train.minibatches * train.ranks)
    return Workload(
        tokens=min(max(tokens, longest), train.capacity),
        accumulates=tokens > train.capacity,
        device="cuda" if on_gpus else "cpu",
    )


@dataclass(frozen=True)
class RankBytes:
    """Hold what one rank allocates on its device, in bytes.

    Args:
        resident: what stays between two steps.
        instants: what lives at the three instants one of which is the peak, by name.
    """

    resident: int
    instants: dict[str, dict[str, int]]

    @property
    def peaks(self) -> dict[str, int]:
        """Return the bytes of each instant."""
        return {instant: sum(parts.values()) for instant, parts in self.instants.items()}

    @property
    def peak(self) -> int:
        """Return the most that lives at one instant of a step."""
        return max(self.peaks.values())


def rank_bytes(parameters: ParameterCounts, shape: ModelShape, train: Train, work: Workload) -> RankBytes:
    """Return what one rank allocates for updates of `work`. `train.dtype` is not auto."""
    item = DTYPES[train.dtype].itemsize
    shards = train.shard_ranks or train.ranks
    shard = FLOAT32 * parameters.total // shards
    needed = _compiled_bytes(shape, item) if train.compile else _needed_bytes(shape, item)
    kept = {
        "none": needed,
        "selective": _selected_bytes(shape, item),
        "full": item * shape.width,  # the block's input
    }[train.checkpointing]
    recomputed = max(needed - kept, 0)
    gradients_of_block = item * (parameters.largest_block or parameters.root)
    resident = {"weights": shard, "AdamW's moments": MOMENTS_BYTES * parameters.total // shards}
    computing = {
        **resident,
        "gathered weights": _gathered(parameters, train, item),
        "gradients": _gradients(parameters, train, shard, work),
        "activations": kept * shape.layers * work.tokens,
    }
    backward = {
        "one block's backward": (recomputed + _gradient_bytes(shape, item)) * work.tokens + gradients_of_block,
        "head": item * shape.vocab_size * shape.width,  # the gradient of its weight
    }
    return RankBytes(
        resident=sum(resident.values()),
        instants={
            "loss": {**computing, "head": _head(shape, train, item, work)},
            "backward": {**computing, **backward},
            "reduce": {**resident, "gradients on their way": _collectives(parameters, train, item, shard, work)},
        },
    )


def _gathered(parameters: ParameterCounts, train: Train, item: int) -> int:
    """Return the weights that are whole at once: all, or with train.reshard the root, a block, and the next one.

    The next block is gathered ahead into a buffer, from which its tensors are copied.
    """
    if not train.reshard:
        return item * parameters.total
    return item * (parameters.root + 3 * parameters.largest_block)


def _gradients(parameters: ParameterCounts, train: Train, shard: int, work: Workload) -> int:
    """Return the gradients of earlier micro-batches: whole on each rank, or with train.reshard its shard."""
    if not work.accumulates:
        return 0
    return shard if train.reshard else FLOAT32 * parameters.total


def _collectives(parameters: ParameterCounts, train: Train, item: int, shard: int, work: Workload) -> int:
    """Return the gradients at the end of an update: the root's, the buffer that sends them, and every shard.

    The buffer of the block before it is freed when its collective has ended.
    """
    accumulated = FLOAT32 if work.accumulates and not train.reshard else item
    root = (accumulated + FLOAT32) * parameters.root
    return root + FLOAT32 * parameters.largest_block + shard


def _head(shape: ModelShape, train: Train, item: int, work: Workload) -> int:
    """Return the most that last norm and head hold, with every token scored."""
    weight = shape.vocab_size * shape.width
    hidden = item * shape.width * work.tokens
    norm = _norm_bytes(shape, item) * work.tokens
    in_forward = _logits(shape, train, item, work)
    in_backward = item * weight  # the gradient, scaled by the loss's own
    return norm + 2 * hidden + FLOAT32 * weight + max(in_forward, in_backward)


def _logits(shape: ModelShape, train: Train, item: int, work: Workload) -> int:
    """Return a chunk of logits with its gradient, and what a CPU needs to compute with them.

    With train.head float32 and a narrower train.dtype the gradient has a place of its own, and a CPU casts the weight:
    see arl.kernels.head. A CPU also needs rows in float32, or the rounded product that d weight adds up.
    """
    is_wider = train.head == "float32" and item < FLOAT32
    row = item * shape.vocab_size
    if is_wider:
        row += FLOAT32 * shape.vocab_size
    max_rows = max(head.CHUNK_BYTES[work.device] // row, 1)
    chunk = row * min(work.tokens, max_rows)
    if work.device != "cpu":
        return chunk
    weight = FLOAT32 * shape.vocab_size * shape.width if is_wider else 0
    of_rows = min(rows.CHUNK_BYTES, FLOAT32 * shape.vocab_size * work.tokens)
    product = 0 if item == FLOAT32 else item * shape.vocab_size * shape.width
    return chunk + weight + max(int(CPU_ROW_WORKSPACES * of_rows), product)


def _norm_bytes(shape: ModelShape, item: int) -> int:
    """Return what a norm keeps of one token, with its output, which the linear layers behind it keep."""
    root = FLOAT32  # one over the root of the mean square
    if shape.has_wide_norms:
        return 2 * FLOAT32 * shape.width + item * shape.width + root
    return FLOAT32 * shape.width + 2 * item * shape.width + root


def _needed_bytes(shape: ModelShape, item: int) -> int:
    """Return what the backward of a block needs of one token, all that train.checkpointing none keeps."""
    attention = item * 2 * (shape.query_width + shape.key_width) + FLOAT32 * shape.heads
    mlp = 4 * item * shape.mlp_width
    needed = 2 * _norm_bytes(shape, item) + attention + mlp
    if shape.has_normed_heads:
        needed += (FLOAT32 + item) * (shape.query_width + shape.key_width) + _head_roots(shape)
    return needed


def _head_roots(shape: ModelShape) -> int:
    return FLOAT32 * (shape.heads + shape.kv_heads)


def _selected_bytes(shape: ModelShape, item: int) -> int:
    """Return the block's input and what linear layers and attention return: see arl.train.sharding.KEPT."""
    attention = 2 * (shape.query_width + shape.key_width) + shape.width
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
        roots = _head_roots(shape)
    return item * widths + FLOAT32 * shape.heads + roots


def _gradient_bytes(shape: ModelShape, item: int) -> int:
    """Return the gradients of activations that live together: behind the product of gate and up, or in a norm."""
    in_mlp = item * (shape.width + 2 * shape.mlp_width)
    in_norm = item * shape.width + 4 * FLOAT32 * shape.width
    return max(in_mlp, in_norm)
