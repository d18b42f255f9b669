"""Micro-batches are joined once, one ahead of their use, and are those that joining at once makes."""

import threading

import msgspec
import numpy as np
import pytest

from arl.config.recipe import Train
from arl.train import micro_batch
from arl.train.algorithms.advantage import GRPO
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.micro_batch import AheadJoiner, MicroBatch, join, join_shard
from arl.train.packing import Packing, SequencePack, Shard, pack_batch
from tests.train.synthetic import batch


def chosen(minibatches: int = 2) -> Shard[SequencePack]:
    train = Train(minibatches=minibatches, capacity=60)
    packing = Packing(train, DecoupledPPO(), GRPO(), ranks=1)
    (shard,), _ = pack_batch(batch(groups=8, size=4), packing)
    assert all(len(minibatch.micro_batches) > 2 for minibatch in shard.minibatches)
    return shard


class Watched:
    """Joins, and counts what was joined; `begun` is released once for each."""

    def __init__(self) -> None:
        self.joined: list[int] = []
        self.begun = threading.Semaphore(0)

    def __call__(self, pack: SequencePack) -> MicroBatch:
        self.joined.append(id(pack))
        self.begun.release()
        return join(pack)


def test_a_shard_joined_ahead_is_the_shard_joined_at_once() -> None:
    shard = chosen()
    joiner = AheadJoiner()
    ahead = joiner.shard(shard, first_minibatch=1)
    for one, other in zip(ahead.minibatches, join_shard(shard).minibatches, strict=True):
        assert (one.loss_tokens, one.loss_sequences) == (other.loss_tokens, other.loss_sequences)
        for a, b in zip(one.micro_batches, other.micro_batches, strict=True):
            ours, theirs = msgspec.structs.asdict(a), msgspec.structs.asdict(b)
            ours |= ours.pop("columns")
            theirs |= theirs.pop("columns")
            assert ours.keys() == theirs.keys()
            for name, array in ours.items():
                np.testing.assert_array_equal(array, theirs[name])
    joiner.close()


def test_the_thread_is_one_micro_batch_ahead_and_joins_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched()
    monkeypatch.setattr(micro_batch, "join", watched)
    joiner = AheadJoiner()
    shard = chosen()
    packs = [pack for minibatch in shard.minibatches for pack in minibatch.micro_batches]
    ahead = joiner.shard(shard)
    for _ in range(2):
        assert watched.begun.acquire(timeout=60), "the one that comes next is joined without being asked for"
    assert watched.joined == [id(packs[0]), id(packs[1])]
    for _ in range(2):  # a proximal pass, and then the update
        for minibatch in ahead.minibatches:
            list(minibatch.micro_batches)
    joiner.close()
    assert watched.joined == [id(pack) for pack in packs]
