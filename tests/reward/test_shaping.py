"""Shaping: golden numbers of the papers' formulas, bounds for any input, and settings that are refused."""

import math
from typing import Any

import pytest

from arl.config.recipe import Recipe
from arl.config.scoring_sections import Overlong, Reward
from arl.reward.scorer import is_masked, shaped
from arl.types import Response


@pytest.mark.parametrize(("raw", "expected"), [(1.0, 5.0), (0.0, -5.0), (0.5, 0.0), (9.0, 20.0), (-9.0, -20.0)])
def test_areals_math_recipe_gives_its_numbers(raw: float, expected: float) -> None:
    assert shaped(raw, Response(""), Reward(scale=10.0, bias=-0.5, clip=(-20.0, 20.0))) == expected


@pytest.mark.parametrize(
    ("num_tokens", "penalty"),
    [(1, 0.0), (16_384, 0.0), (16_385, -1 / 4096), (17_408, -0.25), (18_432, -0.5), (20_480, -1.0)],
)
def test_the_overlong_penalty_of_dapo_with_its_lengths(num_tokens: int, penalty: float) -> None:
    """Its experiments expect 16,384 tokens and allow 4,096 more, §4.1."""
    response = Response("", num_tokens=num_tokens, budget=20_480)
    assert shaped(0.0, response, Reward(overlong=Overlong(buffer=4_096))) == penalty


def test_the_recipe_sets_all_of_it() -> None:
    fields = {"scale": 10, "bias": -0.5, "clip": [-20, 4], "overlong": {"buffer": 16, "penalty": 0.5}}
    section = Reward.model_validate({**fields, "mask_truncated": True})
    long = Response("", truncated=True, num_tokens=48, budget=48)
    assert shaped(1.0, long, section) == 4.0 - 0.5
    assert is_masked(long, section)


@pytest.mark.parametrize(
    ("reward", "complaint"),
    [
        ({"clip": [1, 1]}, r"reward.clip \[1.0, 1.0\]: give \[low, high\] with low < high"),
        ({"scale": -1}, "reward.scale"),
        ({"overlong": {"buffer": 48}}, "must be less than rollout.max_new_tokens 48"),
        ({"weights": {"correct": math.inf}}, "reward.weights"),
    ],
)
def test_impossible_settings_are_refused(reward: dict[str, Any], complaint: str) -> None:
    fields = {"data": {"task": "running_checksum"}, "rollout": {"max_new_tokens": 48}}
    with pytest.raises(ValueError, match=complaint):
        Recipe.model_validate({"model": {"tiny": {}}, "reward": reward, **fields})
