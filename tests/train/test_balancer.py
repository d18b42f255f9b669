"""Micro-batches fit, are as few as can be promised, and keep the ranks in step."""

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
