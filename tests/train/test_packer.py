"""Packing keeps every loss token, once, with its context, whatever the capacity and the number of ranks."""

import pytest

from arl.errors import InputError
from tests.train.synthetic import batch, packed


def test_a_trajectory_longer_than_the_capacity_is_refused_with_both_numbers() -> None:
    with pytest.raises(InputError, match=r"28 tokens .* train.capacity 20"):
        packed(batch(groups=4, size=2), minibatches=1, capacity=20, ranks=1)


def test_trajectories_without_gradient_are_left_out_but_counted() -> None:
    full = batch(groups=32, size=4)
    (shard,), report = packed(full, minibatches=1, capacity=1000, ranks=1)
    tokens = [sum(int(t.loss_mask.sum()) for t in g.trajectories) for g in full.groups]
    equal = [len({t.reward for t in g.trajectories}) == 1 for g in full.groups]
    assert 0 < sum(equal) < 32
    assert report["advantage/zero_fraction"] == sum(equal) / 32
    assert shard.minibatches[0].loss_tokens == sum(tokens)
    computed = sum(len(mb.loss_scores) for mb in shard.minibatches[0].micro_batches)
    assert computed == sum(n for n, e in zip(tokens, equal, strict=True) if not e)
