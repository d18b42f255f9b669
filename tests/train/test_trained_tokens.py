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
from tests.train.synthetic import batch

pytestmark = pytest.mark.usefixtures("alone")


def echoed(shard: Shard[MicroBatch]) -> TokenLogprobs | None:
    """Answer as a rank whose policy is the one that sampled."""
    packs = [pack for minibatch in shard.minibatches for pack in minibatch.micro_batches if PLACES in pack.columns]
    if not packs:
        return None
    logprobs = np.concatenate([pack.columns["behavior_logprobs"] for pack in packs])
    return TokenLogprobs(np.concatenate([pack.columns[PLACES] for pack in packs]), {"current_logprobs": logprobs})


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(60, 400), st.integers(1, 4))
def test_places_lead_every_packed_token_back_to_its_own(seed: int, minibatches: int, capacity: int, ranks: int) -> None:
    """The behavior logprobs, which differ from token to token, stand in for what a rank computes."""
    drawn = batch(groups=4 * minibatches, size=3, seed=seed)
    train = Train(minibatches=minibatches, capacity=capacity)
    packing = Packing(train, DecoupledPPO(), GRPO(), ranks=ranks, records=True)
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
    recorded = [t.behavior_logprobs[t.loss_mask] for group in drawn.groups for t in group.trajectories]
    expected = np.where(advantages != 0, np.concatenate(recorded), np.nan)
    assert np.array_equal(tokens.current_logprobs, expected, equal_nan=True)
