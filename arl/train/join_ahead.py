"""Join micro-batches in a thread, one ahead of the computation. Torch-free.

    SequenceShard ─► Shard, whose micro-batches are joined when they are first asked for
                     asking for micro-batch i ─► a thread joins i, and then the one that comes next

A step begins when its first micro-batch is joined. The others are joined while the one before them is computed. A
minibatch may be computed twice (the proximal pass comes first), but it is joined once.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from arl.train.micro_batch import MicroBatch, SequencePack, join
from arl.train.packer import SequenceShard
from arl.train.shard import Minibatch, Shard


class AheadJoiner:
    """Owns the thread that joins."""

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
