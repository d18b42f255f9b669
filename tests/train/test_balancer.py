"""Micro-batches fit, are as few as can be promised, and keep the ranks in step."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.errors import InputError
from arl.train.balance import algorithm_1, balance, fixed_count, least_micro_batches, martello_toth

CAPACITY = 100
Items = list[tuple[int, int]]  # tokens, FLOPs
lengths = st.lists(st.integers(1, 50), max_size=40).map(lambda drawn: np.array(drawn, np.int64))
items = st.lists(st.tuples(st.integers(1, CAPACITY), st.integers(0, 1000)), max_size=60)


def arrays(some: Items) -> tuple[np.ndarray, np.ndarray]:
    return np.array([t for t, _ in some], np.int64), np.array([f for _, f in some], np.float64)


def contents(shares: list[list[list[int]]], some: Items) -> list[list[Items]]:
    return [[sorted(some[i] for i in members) for members in share] for share in shares]


@given(items, st.integers(1, 9))
def test_every_item_is_dealt_once_into_bins_that_fit_and_every_rank_has_as_many(some: Items, ranks: int) -> None:
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


@given(items, st.integers(1, 9))
def test_micro_batches_are_at_most_half_as_many_again_as_the_bound(some: Items, ranks: int) -> None:
    tokens, flops = arrays(some)
    count = sum(map(len, balance(tokens, flops, CAPACITY, ranks)))
    bound = martello_toth(tokens, CAPACITY)
    assert least_micro_batches(tokens, CAPACITY, ranks) <= count <= max(1, -(-(3 * bound // 2) // ranks)) * ranks


@given(items, st.integers(1, 9), st.randoms(use_true_random=False))
def test_the_same_items_in_any_order_give_the_same_micro_batches(
    some: Items, ranks: int, shuffler: random.Random
) -> None:
    shuffled = list(some)
    shuffler.shuffle(shuffled)
    given_, again = (contents(balance(*arrays(x), CAPACITY, ranks), x) for x in (some, shuffled))
    assert given_ == again


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
