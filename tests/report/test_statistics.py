"""Intervals hold the mean, shrink with seeds and are the same every time; nothing is known outside of measurements."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.report.statistics import at_each, difference_of_means
from tests.examples import examples

NUMBERS = st.floats(-100, 100)


@pytest.mark.parametrize("num_seeds", [2, 3, 5, 10])
def test_intervals_of_differences_of_unlike_seeds_hold_the_true_one_as_often_as_they_say(num_seeds: int) -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(300):
        found = difference_of_means(rng.normal(size=num_seeds).tolist(), rng.normal(size=num_seeds).tolist())
        assert found is not None
        held += found.low <= 0 <= found.high
    assert held / 300 >= 0.92


@examples(1)
@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=6, unique_by=lambda p: p[0]), NUMBERS)
def test_nothing_is_known_outside_of_what_was_measured(points: list[tuple[float, float]], wanted: float) -> None:
    points.sort()
    x = np.array([point[0] for point in points])
    y = np.array([point[1] for point in points])
    found = float(at_each(x, y, np.array([wanted]))[0])
    if not x[0] <= wanted <= x[-1]:
        assert math.isnan(found)
        return
    assert y.min() - 1e-9 <= found <= y.max() + 1e-9
