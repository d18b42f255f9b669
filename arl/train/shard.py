"""Hold what a rank computes in a step, and report how a step was packed. Torch-free.

SequenceShard ─► join_shard, or arl.train.join_ahead ─► Shard ─► Learner.step
                                                          └► pack_sizes ─► packing_report, over all ranks
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from arl.data.model_limits import Flops
from arl.train.micro_batch import MicroBatch, forward_flops, join
from arl.train.packer import Packing, SequenceShard
from arl.types import Batch


class Minibatch(Struct, frozen=True):
    """Hold one rank's part of an optimizer update."""

    micro_batches: Sequence[MicroBatch]  # this rank's; every rank has as many, at least one
    loss_tokens: int  # of all ranks, before trajectories without gradient were left out
    loss_sequences: int  # likewise: trajectories with loss tokens


class Shard(Struct, frozen=True):
    """Hold one rank's part of the step that turns version `version` into version + 1."""

    version: int
    minibatches: tuple[Minibatch, ...]


class PackSizes(Struct, frozen=True):
    """Hold what each of a rank's M micro-batches of a step computes, in order."""

    tokens: np.ndarray  # (M,) int64
    flops: np.ndarray  # (M,) float64, of a forward


def join_shard(shard: SequenceShard) -> Shard:
    """Join every micro-batch of a shard."""
    minibatches = []
    for minibatch in shard.minibatches:
        micro_batches = tuple(join(pack) for pack in minibatch.packs)
        minibatches.append(Minibatch(micro_batches, minibatch.loss_tokens, minibatch.loss_sequences))
    return Shard(shard.version, tuple(minibatches))


def pack_sizes(shard: Shard, flops: Flops) -> PackSizes:
    """Measure the micro-batches of a shard. `flops` are those of the model."""
    tokens = []
    flops_of_packs = []
    for minibatch in shard.minibatches:
        for pack in minibatch.micro_batches:
            tokens.append(len(pack.token_ids))
            flops_of_packs.append(forward_flops(pack, flops))
    return PackSizes(
        tokens=np.array(tokens, np.int64),
        flops=np.array(flops_of_packs, np.float64),
    )


def packing_report(batch: Batch, sizes: Sequence[PackSizes], packing: Packing) -> dict[str, float]:
    """Return the metrics of the micro-batches that `batch` became; arl/metrics/names.py defines them.

    Args:
        sizes: of each rank.
    """
    work = np.stack([of_rank.flops for of_rank in sizes])
    synchronous_time = work.max(axis=0).sum()
    mean_time = work.sum(axis=1).mean()
    computed = sum(int(of_rank.tokens.sum()) for of_rank in sizes)
    room = packing.capacity * work.size
    given = 0
    for group in batch.groups:
        given += sum(len(trajectory.token_ids) for trajectory in group.trajectories)
    return {
        "packing/balance": float(synchronous_time / mean_time),
        "packing/efficiency": computed / room,
        "packing/saved_fraction": 1 - computed / given,
    }
