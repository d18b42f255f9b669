"""Micro-batches that a thread joins ahead are joined once, in the order of their use, as joining at once makes them."""

from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest

from arl.config.recipe import Train
from arl.train import micro_batch
from arl.train.algorithms.advantage import GRPO
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.micro_batch import join, join_ahead, join_shard
from arl.train.packing import Packing, SequencePack, pack_batch
from tests.train.synthetic import batch


def test_a_shard_joined_ahead_is_the_shard_joined_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    packing = Packing(Train(minibatches=2, capacity=60), DecoupledPPO(), GRPO(), ranks=1)
    (shard,), _ = pack_batch(batch(groups=8, size=4), packing)
    at_once = join_shard(shard)
    joined: list[int] = []

    def watched(pack: SequencePack) -> micro_batch.MicroBatch:
        joined.append(id(pack))
        return join(pack)

    monkeypatch.setattr(micro_batch, "join", watched)
    with ThreadPoolExecutor(1) as thread:
        ahead = join_ahead(shard, thread, first_minibatch=1)
    assert joined == [id(pack) for m in (1, 0) for pack in shard.minibatches[m].micro_batches]
    for one, other in zip(ahead.minibatches, at_once.minibatches, strict=True):
        assert (one.loss_tokens, one.loss_sequences) == (other.loss_tokens, other.loss_sequences)
        assert len(one.micro_batches) > 2
        for a, b in zip(one.micro_batches, other.micro_batches, strict=True):
            ours, theirs = msgspec.structs.asdict(a), msgspec.structs.asdict(b)
            ours |= ours.pop("columns")
            theirs |= theirs.pop("columns")
            assert ours.keys() == theirs.keys()
            for name, array in ours.items():
                np.testing.assert_array_equal(array, theirs[name])
