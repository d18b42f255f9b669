"""What a step computes of its tokens comes back to them, however they were packed, shared and spread over ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.config.recipe import Train
from arl.train.algorithms.advantage import GRPO
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.packing import (
    PLACES,
    MicroBatch,
    Packing,
    Shard,
    TokenLogprobs,
    join_shard,
    loss_sequences,
    pack_batch,
    trained_tokens,
)
from arl.types import Batch
from tests.train.synthetic import batch

pytestmark = pytest.mark.usefixtures("alone")


def packing_of(minibatches: int, capacity: int, ranks: int = 1) -> Packing:
    train = Train(minibatches=minibatches, capacity=capacity)
    return Packing(train, DecoupledPPO(), GRPO(), ranks=ranks, records=True)


def micro_batches(shard: Shard[MicroBatch]) -> list[MicroBatch]:
    return [pack for minibatch in shard.minibatches for pack in minibatch.micro_batches]


def flat(given_batch: Batch, name: str) -> np.ndarray:
    """A column of the trajectories, at the loss tokens alone."""
    trajectories = [t for group in given_batch.groups for t in group.trajectories]
    return np.concatenate([getattr(t, name)[t.loss_mask] for t in trajectories])


def echoed(shard: Shard[MicroBatch]) -> TokenLogprobs | None:
    """Answer as a rank whose policy is the one that sampled."""
    pairs = [(p.columns[PLACES], p.columns["behavior_logprobs"]) for p in micro_batches(shard) if PLACES in p.columns]
    if not pairs:
        return None
    places, logprobs = map(np.concatenate, zip(*pairs, strict=True))
    return TokenLogprobs(places, {"current_logprobs": logprobs})


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(60, 400), st.integers(1, 4))
def test_places_lead_every_packed_token_back_to_its_own(seed: int, minibatches: int, capacity: int, ranks: int) -> None:
    """The behavior logprobs, which differ from token to token, stand in for what a rank computes."""
    drawn = batch(groups=4 * minibatches, size=3, seed=seed)
    packing = packing_of(minibatches, capacity, ranks)
    shards, _ = pack_batch(drawn, packing)
    of_ranks = [echoed(join_shard(shard)) for shard in shards]
    tokens = trained_tokens(drawn, shards, of_ranks, packing)
    assert tokens is not None
    sequences = [s for group in loss_sequences(drawn, GRPO()) for s in group]
    advantages = np.concatenate([s.columns["advantages"] for s in sequences])
    assert np.array_equal(tokens.advantages, advantages)
    assert tokens.proximal_logprobs is None
    if tokens.current_logprobs is None:
        assert not advantages.any()
        return
    expected = np.where(advantages != 0, flat(drawn, "behavior_logprobs"), np.nan)
    assert np.array_equal(tokens.current_logprobs, expected, equal_nan=True)
