"""Packing by numbers of sequences puts each into one micro-batch that fits, and changes no loss token."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.errors import InputError
from arl.train.balance import algorithm_1, fixed_count

lengths = st.lists(st.integers(1, 50), max_size=40).map(lambda drawn: np.array(drawn, np.int64))


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
