"""Derive the bytes that one trainer rank allocates on its device, and the instant of an update at which they are most.

    instant     weights, moments   gathered   gradients   activations   block   head       collectives
    loss               ×              ×           ×            ×                 ×
    backward           ×              ×           ×            ×          ×      d weight
    reduce             ×                                                                       ×

An update has little of its own: AdamW works in place on what is sharded. In between two steps only weights and moments
stay. Everything is a pure function of the model's sizes and of the recipe's section `train`.
"""

from dataclasses import dataclass
from typing import Literal

from transformers import PreTrainedModel

from arl.config.recipe import Train
from arl.data.model_limits import ModelShape
from arl.kernels import head, rows
from arl.models.load import DTYPES
from arl.train import sharding
from arl.train.activation_bytes import FLOAT32, block_bytes, norm_bytes

MOMENTS_BYTES = 8  # of AdamW's two moments of a parameter
CPU_ROW_WORKSPACES = 2.25  # float32 copies of a chunk of rows in arl.kernels.rows on a CPU, and a mask of bytes

Device = Literal["cuda", "cpu"]


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
    device: Device


@dataclass(frozen=True)
class RankBytes:
    """Hold what one rank allocates on its device, in bytes.

    Args:
        weights: float32 master weights, this rank's shard.
        moments: AdamW's, this rank's shard.
        gathered: weights in train.dtype, as blocks compute with them.
        gradients: of the weights, from an update's earlier micro-batches.
        activations: what all blocks keep for the backward.
        block: what one block holds while it runs backward: activations that are computed again, and all gradients.
        head: last norm, a chunk of logits, and the gradients of hidden states and of the head's weight.
        head_gradient: what is left of `head` while blocks run backward.
        collectives: gradients on their way between ranks, and the shard that arrives.
    """

    weights: int
    moments: int
    gathered: int
    gradients: int
    activations: int
    block: int
    head: int
    head_gradient: int
    collectives: int

    @property
    def resident(self) -> int:
        """Return what stays between two steps."""
        return self.weights + self.moments

    @property
    def instants(self) -> dict[str, dict[str, int]]:
        """Return what lives at the three instants one of which is the peak, by name."""
        resident = {"weights": self.weights, "AdamW's moments": self.moments}
        computing = {
            **resident,
            "gathered weights": self.gathered,
            "gradients": self.gradients,
            "activations": self.activations,
        }
        return {
            "loss": {**computing, "head": self.head},
            "backward": {**computing, "one block's backward": self.block, "head": self.head_gradient},
            "reduce": {**resident, "gradients on their way": self.collectives},
        }

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
    block = block_bytes(shape, item, train.checkpointing, train.compile)
    of_weights = item * (parameters.largest_block or parameters.root)
    return RankBytes(
        weights=FLOAT32 * parameters.total // shards,
        moments=MOMENTS_BYTES * parameters.total // shards,
        gathered=_gathered(parameters, train, item),
        gradients=_gradients(parameters, train, shards, work),
        activations=block.kept * shape.layers * work.tokens,
        block=(block.recomputed + block.gradients) * work.tokens + of_weights,
        head=_head(shape, train, item, work),
        head_gradient=item * shape.vocab_size * shape.width,
        collectives=_collectives(parameters, train, item, shards, work),
    )


def _gathered(parameters: ParameterCounts, train: Train, item: int) -> int:
    """Return the weights that are whole at once: all, or with train.reshard the root, a block, and the next one.

    The next block is gathered ahead into a buffer, from which its tensors are copied.
    """
    if not train.reshard:
        return item * parameters.total
    return item * (parameters.root + 3 * parameters.largest_block)


def _gradients(parameters: ParameterCounts, train: Train, shards: int, work: Workload) -> int:
    """Return the gradients of earlier micro-batches: whole on each rank, or with train.reshard its shard."""
    if not work.accumulates:
        return 0
    copies = shards if train.reshard else 1
    return FLOAT32 * parameters.total // copies


def _collectives(parameters: ParameterCounts, train: Train, item: int, shards: int, work: Workload) -> int:
    """Return the gradients at the end of an update: the root's, the buffer that sends them, and every shard.

    The buffer of the block before it is freed when its collective has ended.
    """
    accumulated = FLOAT32 if work.accumulates and not train.reshard else item
    root = (accumulated + FLOAT32) * parameters.root
    block = FLOAT32 * parameters.largest_block
    return root + block + FLOAT32 * parameters.total // shards


def _head(shape: ModelShape, train: Train, item: int, work: Workload) -> int:
    """Return the most that last norm and head hold, with every token scored."""
    weight = shape.vocab_size * shape.width
    hidden = item * shape.width * work.tokens
    logits = _logits(shape, train, item, work)
    norm = norm_bytes(shape, item) * work.tokens
    in_forward = 2 * hidden + FLOAT32 * weight + logits
    in_backward = 2 * hidden + FLOAT32 * weight + item * weight  # scaled by the loss's own gradient
    return norm + max(in_forward, in_backward)


def _logits(shape: ModelShape, train: Train, item: int, work: Workload) -> int:
    """Return a chunk of logits with its gradient, and what a CPU needs to compute with them.

    With train.head float32 and a narrower train.dtype the gradient has a place of its own, and a CPU casts the weight:
    see arl.kernels.head.
    """
    is_wider = train.head == "float32" and item < FLOAT32
    row = item * shape.vocab_size
    if is_wider:
        row += FLOAT32 * shape.vocab_size
    most_rows = max(head.CHUNK_BYTES[work.device] // row, 1)
    chunk = row * min(work.tokens, most_rows)
    if work.device != "cpu":
        return chunk
    weight = FLOAT32 * shape.vocab_size * shape.width if is_wider else 0
    return chunk + weight + _cpu_workspace(shape, item, work.tokens)


def _cpu_workspace(shape: ModelShape, item: int, tokens: int) -> int:
    """Return the workspace of a chunk of logits: rows in float32, or the rounded product that d weight adds up."""
    of_rows = min(rows.CHUNK_BYTES, FLOAT32 * shape.vocab_size * tokens)
    product = 0 if item == FLOAT32 else item * shape.vocab_size * shape.width
    return max(int(CPU_ROW_WORKSPACES * of_rows), product)
