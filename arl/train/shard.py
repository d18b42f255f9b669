"""Hold what a rank computes in a step, and report how a step was packed. Torch-free.

    SequenceShard ─► join_shard, or AheadJoiner ─► Shard ─► Learner.step
                                                     └► pack_sizes ─► packing_report, over all ranks

A step begins when its first micro-batch is joined. A thread joins the others while the one before them is computed. A
minibatch may be computed twice (the proximal pass comes first), but it is joined once.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from msgspec import Struct

from arl.data.model_limits import Flops
from arl.train.micro_batch import MicroBatch, SequencePack, forward_flops, join
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


class AheadJoiner:
    """Own the thread that joins micro-batches, one ahead of the computation."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "joiner")

    def shard(self, shard: SequenceShard, first_minibatch: int = 0) -> Shard:
        """Return a shard whose micro-batches are joined ahead of their use; waits for the first.

        Args:
            first_minibatch: the one that is computed first.
        """
        packs = [pack for minibatch in shard.minibatches for pack in minibatch.packs]
        joined = _Joined(packs, self._thread)
        minibatches = []
        start = 0
        for minibatch in shard.minibatches:
            end = start + len(minibatch.packs)
            micro_batches = _Part(joined, range(start, end))
            minibatches.append(Minibatch(micro_batches, minibatch.loss_tokens, minibatch.loss_sequences))
            start = end
        minibatches[first_minibatch].micro_batches[0]
        return Shard(shard.version, tuple(minibatches))

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()


class _Joined:
    """Hold the micro-batches of a step, joined or not yet."""

    def __init__(self, packs: Sequence[SequencePack], thread: ThreadPoolExecutor) -> None:
        self._packs = packs
        self._thread = thread
        self._futures: dict[int, Future[MicroBatch]] = {}

    def get(self, i: int) -> MicroBatch:
        """Return micro-batch i, and let the thread begin with the next. The first one follows the last one."""
        self._begin(i)
        self._begin((i + 1) % len(self._packs))
        return self._futures[i].result()  # it only computes, so it ends

    def _begin(self, i: int) -> None:
        if i not in self._futures:
            self._futures[i] = self._thread.submit(join, self._packs[i])


class _Part(Sequence[MicroBatch]):
    """Hold the micro-batches of one minibatch."""

    def __init__(self, joined: _Joined, places: range) -> None:
        self._joined = joined
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, i: int) -> MicroBatch:  # type: ignore[override]  # no slices
        return self._joined.get(self._places[i])


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
