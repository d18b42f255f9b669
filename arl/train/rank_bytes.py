"""Derive the bytes that one trainer rank allocates on its device, and the instant of an update at which they are most.

    instant     weights, moments   gathered   gradients   activations   block   head       collectives
    loss               ×              ×           ×            ×                 ×
    backward           ×              ×           ×            ×          ×      d weight
    reduce             ×                                                                       ×
    update             ×                       ×

AdamW works in place on what is sharded; before that a GPU computes the gradient's products with AdamW's means. In
between two steps only weights and moments stay. Everything is a pure function of the model's sizes and of the recipe's
section `train`.

What autograd keeps of one token in one decoder block, with w = width, q and k = widths of queries and keys, m = width
of the MLP, e = bytes of a number in train.dtype. transformers computes norms in float32:

    norm (two)          its input in float32: 4w    normalized: ew    times the weight, the linear layers' input: ew
    norms of heads      inputs in float32: 4(q + k)    normalized: e(q + k)              Qwen3 alone
    attention           queries, keys, values and output: e(2q + 2k)    log of the sum of each head: 4 · heads
    MLP                 gate, its activation, up, and their product: 4em

The input of linear layers is what the row above it keeps. Rotary embedding and residual sums keep nothing, because
their derivatives need no input. With float32 a norm's input is the residual stream itself.
"""

from typing import Literal, NamedTuple

import torch
from transformers import PreTrainedModel

from arl.config.recipe import Recipe, Train
from arl.data.model_limits import ModelShape
from arl.kernels import head
from arl.models.load import DTYPES
from arl.models.weights import LORA
from arl.train import sharding

FLOAT32 = 4  # bytes of a number in which norms and attention's sums are computed
MOMENTS_BYTES = 8  # of AdamW's two moments of a parameter


class ParameterCounts(NamedTuple):
    """Count the parameters of a model by the units in which FSDP2 gathers them."""

    total: int
    largest_block: int  # 0: the blocks are gathered together with the root
    root: int  # embedding, last norm and head, and blocks that are too small for a unit
    adapters: int = 0  # of LoRA, which then alone are trained; the other counts are without them

    @classmethod
    def of(cls, model: PreTrainedModel) -> "ParameterCounts":
        """Count those of a model, which may be on the meta device."""
        total = _count(model)
        blocks = [_count(block) for block in model.model.layers]
        units = [size for size in blocks if size >= sharding.WORTH_A_COLLECTIVE]
        adapters = sum(p.numel() for name, p in model.named_parameters() if LORA in name)
        return cls(total, max(units, default=0), total - sum(units), adapters)


def _count(module: torch.nn.Module) -> int:
    """Count the parameters of a module without those of adapters."""
    return sum(p.numel() for name, p in module.named_parameters() if LORA not in name)


class Workload(NamedTuple):
    """Say what one update computes on a rank."""

    tokens: int  # packed tokens of its largest micro-batch
    accumulates: bool  # it has several micro-batches, so that one meets the gradients of another
    device: Literal["cuda", "cpu"]  # where it computes, because the head's chunks differ


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


class RankBytes(NamedTuple):
    """Hold what one rank allocates on its device, in bytes."""

    resident: int  # what stays between two steps
    when: str  # the instant at which it allocates most
    parts: dict[str, int]  # what lives then, by name

    @property
    def peak(self) -> int:
        """Return the most that lives at one instant of a step."""
        return sum(self.parts.values())


def with_critic(policy: RankBytes, critic: RankBytes) -> RankBytes:
    """Return what a rank allocates that trains both, one after the other: while one computes, the other's shards stay.

    The order of a step (arl.train.learner) leaves no gathered weights of one while the other computes.
    """
    critic_computes = critic.peak + policy.resident > policy.peak + critic.resident
    computing, resting = (critic, policy) if critic_computes else (policy, critic)
    other = "policy's" if critic_computes else "critic's"
    parts = computing.parts | {f"{other} weights and moments": resting.resident}
    return RankBytes(policy.resident + critic.resident, computing.when, parts)


def rank_bytes(parameters: ParameterCounts, shape: ModelShape, train: Train, work: Workload) -> RankBytes:
    """Return what one rank allocates for updates of `work`. `train.dtype` is not auto."""
    item = DTYPES[train.dtype].itemsize
    shards = train.shard_ranks or train.ranks
    # Only adapters have gradients and moments, where there are any. A frozen base is held as it computes.
    trained = parameters.adapters or parameters.total
    frozen = parameters.total if parameters.adapters else 0
    shard = FLOAT32 * trained // shards
    needed, kept = _activations(shape, train, item)
    # With train.reshard a rank holds the root, a block and the next one, which is gathered ahead into a buffer from
    # which its tensors are copied; and its shard of the gradients.
    gathered = parameters.root + 3 * parameters.largest_block if train.reshard else parameters.total
    gradients = shard if train.reshard else FLOAT32 * trained
    resident = {"weights": shard + item * frozen // shards, "AdamW's moments": MOMENTS_BYTES * trained // shards}
    computing = {
        **resident,
        "gathered weights": item * gathered,
        "gradients": gradients if work.accumulates else 0,
        "activations": kept * shape.layers * work.tokens,
    }
    # Gradients of activations live together behind the product of gate and up, or in a norm.
    widest = max(item * (shape.width + 2 * shape.mlp_width), (item + 4 * FLOAT32) * shape.width)
    of_block = (max(needed - kept, 0) + widest) * work.tokens + item * (parameters.largest_block or parameters.root)
    head_weight = item * shape.vocab_size * shape.width
    # The buffer of the block before the root is freed when its collective has ended.
    accumulated = FLOAT32 if work.accumulates and not train.reshard else item
    reduced = (accumulated + FLOAT32) * parameters.root + FLOAT32 * parameters.largest_block + shard
    if frozen:
        reduced = (accumulated + FLOAT32) * trained + shard
    instants = {
        "in the loss": computing | {"head": _head(shape, train, item, work)},
        "in the backward": computing | {"one block's backward": of_block, "head": head_weight},
        "in the reduction": resident | {"gradients on their way": reduced},
        "in the update": resident | {"gradients": shard, "products of gradients": shard * (work.device == "cuda")},
    }
    when = max(instants, key=lambda instant: sum(instants[instant].values()))
    return RankBytes(sum(resident.values()), when, instants[when])


def _activations(shape: ModelShape, train: Train, item: int) -> tuple[int, int]:
    """Return what the backward of a block needs of one token, and what is kept of it until then."""
    heads = shape.query_width + shape.key_width
    sums = FLOAT32 * shape.heads
    if train.compile:
        # Operands of matrix products, and what attention needs and returns: the kernels compute the rest again.
        widths = 4 * shape.width + (3 if shape.has_normed_heads else 2) * heads + 3 * shape.mlp_width
        needed = item * widths + sums
    else:
        needed = 2 * _norm_bytes(shape, item) + item * (2 * heads + 4 * shape.mlp_width) + sums
        if shape.has_normed_heads:
            needed += (FLOAT32 + item) * heads
    kept = {
        "none": needed,
        # The block's input and what linear layers and attention return: see arl.train.sharding.KEPT.
        "selective": item * (3 * shape.width + 2 * heads + 2 * shape.mlp_width) + sums,
        "full": item * shape.width,  # the block's input
    }
    return needed, kept[train.checkpointing]


def _norm_bytes(shape: ModelShape, item: int) -> int:
    """Return what a norm keeps of one token, with its output, which the linear layers behind it keep."""
    if shape.has_wide_norms:
        return (2 * FLOAT32 + item) * shape.width
    return (FLOAT32 + 2 * item) * shape.width


def _head(shape: ModelShape, train: Train, item: int, work: Workload) -> int:
    """Return the most that last norm and head hold, with every token scored.

    With train.head float32 and a narrower train.dtype the logits' gradient has a place of its own: see
    arl.kernels.head.
    """
    weight = shape.vocab_size * shape.width
    is_wider = train.head == "float32" and item < FLOAT32
    row = (item + is_wider * FLOAT32) * shape.vocab_size
    chunk = row * min(work.tokens, max(head.CHUNK_BYTES[work.device] // row, 1))
    hidden = (_norm_bytes(shape, item) + 2 * item * shape.width) * work.tokens
    return hidden + FLOAT32 * weight + max(chunk, item * weight)  # the gradient, scaled by the loss's own
