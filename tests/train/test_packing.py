"""Micro-batches fit, are few and keep the ranks in step; every loss token is packed once, and led back to its place."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.config.recipe import Train
from arl.config.teacher_section import TOP_IDS, TOP_LOGPROBS
from arl.errors import InputError
from arl.train.algorithms.advantage import GRPO
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.balance import algorithm_1, balance, fixed_count, least_micro_batches, martello_toth
from arl.train.micro_batch import MicroBatch, join, join_shard
from arl.train.packing import (
    PLACES,
    Packing,
    SequencePack,
    Shard,
    TokenLogprobs,
    loss_sequences,
    pack_batch,
    trained_tokens,
)
from tests.train.synthetic import batch, packed

pytestmark = pytest.mark.usefixtures("alone")


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


def test_ranks_without_a_sequence_compute_one_token_in_step() -> None:
    joined = join(SequencePack.of([]))
    assert (len(joined.token_ids), len(joined.loss_scores)) == (1, 0)


def test_what_two_teachers_say_of_the_same_tokens_stays_with_its_sequence() -> None:
    said = np.array([[5, 6], [7, 8], [9, 6], [7, 8]])
    pack = SequencePack(
        token_ids=np.array([1, 2, 3, 1, 2, 3], np.int32),
        lengths=np.array([3, 3], np.int32),
        num_loss_tokens=np.array([2, 2], np.int32),
        loss_at=np.array([1, 2, 1, 2], np.int32),
        columns={TOP_IDS: said, TOP_LOGPROBS: np.zeros((4, 2), np.float32)},
    )
    joined = join(pack)
    assert len(joined.token_ids) == 2  # of both together
    assert joined.score_targets.tolist() == [2, 2, 3]
    for score in range(3):
        assert len(np.unique(joined.teacher[TOP_IDS][joined.loss_scores == score], axis=0)) == 1


CAPACITY = 100
Items = list[tuple[int, int]]  # tokens, FLOPs
lengths = st.lists(st.integers(1, 50), max_size=40).map(lambda drawn: np.array(drawn, np.int64))
items = st.lists(st.tuples(st.integers(1, CAPACITY), st.integers(0, 1000)), max_size=60)


def arrays(some: Items) -> tuple[np.ndarray, np.ndarray]:
    return np.array([t for t, _ in some], np.int64), np.array([f for _, f in some], np.float64)


@given(items, st.integers(1, 9))
def test_every_item_is_dealt_once_into_few_bins_that_fit_and_every_rank_has_as_many(some: Items, ranks: int) -> None:
    """They are at most half as many again as the bound."""
    tokens, flops = arrays(some)
    shares = balance(tokens, flops, CAPACITY, ranks)
    assert len(shares) == ranks
    assert len({len(share) for share in shares}) == 1
    assert shares[0], "a rank without a micro-batch could not move in step"
    assert sorted(i for share in shares for members in share for i in members) == list(range(len(some)))
    assert all(tokens[members].sum() <= CAPACITY for share in shares for members in share)
    for share in shares:
        loads = [flops[members].sum() for members in share]
        assert loads == sorted(loads, reverse=True), "each begins with its heaviest"
    most = max(1, -(-(3 * martello_toth(tokens, CAPACITY) // 2) // ranks)) * ranks
    assert least_micro_batches(tokens, CAPACITY, ranks) <= sum(map(len, shares)) <= most


@given(lengths, st.integers(50, 120), st.integers(1, 9))
def test_algorithm_1_packs_every_sequence_once_within_the_capacity_and_opens_enough_bins(
    drawn: np.ndarray, capacity: int, k_min: int
) -> None:
    bins = algorithm_1(drawn, capacity, k_min)
    assert sorted(item for members in bins for item in members) == list(range(len(drawn)))
    assert all(drawn[members].sum() <= capacity for members in bins)
    assert len(bins) >= min(k_min, len(drawn))


def test_more_sequences_than_fit_are_refused_with_the_remedy() -> None:
    with pytest.raises(InputError, match=r"train.packing_count 3: so many sequences have 12 tokens here.* lower"):
        fixed_count(np.array([4, 4, 4]), 10, 3)


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
