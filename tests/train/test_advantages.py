"""Advantages against numbers worked out by hand, and what holds for all of them."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.train.algorithms.advantage import (
    Centered,
    EpisodeColumns,
    ReinforcePlusPlus,
    batch_norm_advantages,
    grpo_advantages,
    rloo_advantages,
)

GROUPS = st.lists(st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=8), min_size=1, max_size=5)


def arrays(groups: list[list[float]]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([np.array(group) for group in groups]), np.array([len(group) for group in groups])


def test_grpo_normalizes_each_group_by_its_own_mean_and_the_samples_deviation() -> None:
    rewards = np.array([1.0, 0.0, 0.0, 0.0, 3.0, 1.0])
    expected = [1.5, -0.5, -0.5, -0.5, 0.7071068, -0.7071068]  # means ¼ and 2, deviations ½ and √2
    np.testing.assert_allclose(grpo_advantages(rewards, np.array([4, 2])), expected, rtol=1e-5)


@given(GROUPS)
def test_rloo_is_its_definition(groups: list[list[float]]) -> None:
    expected = []
    for group in groups:
        for i, reward in enumerate(group):
            others = group[:i] + group[i + 1 :]
            expected.append(reward - sum(others) / len(others) if others else 0.0)
    np.testing.assert_allclose(rloo_advantages(*arrays(groups)), expected, rtol=1e-5, atol=1e-6)


def test_batch_norm_counts_each_loss_token_of_the_step() -> None:
    """Six tokens with rewards 5, 5, 5, 5, −5, −5: the mean is 5/3, the deviation √(25 − 25/9) = 10 √2 / 3."""
    advantages = batch_norm_advantages(np.array([5.0, -5.0, 5.0]), np.array([3, 2, 1]))
    np.testing.assert_allclose(advantages, [1 / math.sqrt(2), -math.sqrt(2), 1 / math.sqrt(2)], rtol=1e-5)


def test_centered_takes_the_groups_mean_and_the_batchs_deviation_if_told() -> None:
    episodes = EpisodeColumns(
        rewards=np.array([1.0, 0.0, 3.0, 1.0]), group_sizes=np.array([2, 2]), num_loss_tokens=np.array([1, 2, 3, 4])
    )
    centered = np.array([0.5, -0.5, 1.0, -1.0])
    np.testing.assert_allclose(Centered().compute(episodes), centered)
    deviation = math.sqrt((0.0625 + 1.5625 + 3.0625 + 0.0625) / 3)  # of 1, 0, 3, 1 around 1.25
    np.testing.assert_allclose(Centered(std="batch").compute(episodes), centered / deviation, rtol=1e-5)


def test_reinforce_plus_plus_discounts_and_whitens_over_the_tokens_of_the_step() -> None:
    episodes = EpisodeColumns(rewards=np.array([3.0, 1.0]), group_sizes=np.array([2]), num_loss_tokens=np.array([2, 1]))
    returns = {"group": np.array([0.5, 1.0, -1.0]), "none": np.array([1.5, 3.0, 1.0])}
    for baseline, expected in returns.items():
        found = ReinforcePlusPlus(baseline=baseline, discount=0.5).compute(episodes)  # type: ignore[arg-type]
        np.testing.assert_allclose(
            found, (expected - expected.mean()) / np.sqrt(expected.var(ddof=1) + 1e-8), rtol=1e-5
        )
    assert ReinforcePlusPlus().smallest_group == 2, "a group of one has no baseline"


@pytest.mark.parametrize("compute", [grpo_advantages, rloo_advantages])
@given(groups=st.lists(st.tuples(st.floats(-1e3, 1e3), st.integers(1, 9)), min_size=1, max_size=5))
def test_a_group_of_equal_rewards_has_advantage_exactly_zero(
    compute: Callable[[np.ndarray, np.ndarray], np.ndarray], groups: list[tuple[float, int]]
) -> None:
    sizes = np.array([size for _, size in groups])
    rewards = np.repeat([reward for reward, _ in groups], sizes)
    assert not compute(rewards, sizes).any()
