"""Intervals hold the mean, shrink with seeds and are the same every time; nothing is known outside of measurements."""

import numpy as np
import pytest

from arl.report.statistics import difference_of_means


@pytest.mark.parametrize("num_seeds", [2, 3, 5, 10])
def test_intervals_of_differences_of_unlike_seeds_hold_the_true_one_as_often_as_they_say(num_seeds: int) -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(300):
        found = difference_of_means(rng.normal(size=num_seeds).tolist(), rng.normal(size=num_seeds).tolist())
        assert found is not None
        held += found.low <= 0 <= found.high
    assert held / 300 >= 0.92
