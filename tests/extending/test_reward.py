"""A reward from outside of arl scores episodes; one with another signature is refused."""

from pathlib import Path

import pytest

from arl.errors import RecipeError
from tests.extending.short_run import ShortRun, trained_rows


def test_training_sees_shaped_rewards_and_the_evaluation_raw_ones(tmp_path: Path) -> None:
    settings = ("reward.function=tests.extending.my_reward:ones_and_length", "reward.weights={length: 0}")
    summary = ShortRun(tmp_path, *settings, "reward.scale=10", "reward.bias=-2", "eval.problems=8").train()
    for row in trained_rows(summary):
        assert row["reward"] == pytest.approx((dict(row["reward_parts"])["ones"] - 2) * 10)
    assert summary.accuracy_before is not None
    assert 0 <= summary.accuracy_before <= 1  # shaped, it would be below −10


@pytest.mark.parametrize(
    ("reward", "complaint"),
    [
        ("without_response", "cannot be called as without_response(problem, response)"),
        ("asynchronous", "asynchronous must not be async"),
    ],
)
def test_a_reward_with_another_signature_is_refused(tmp_path: Path, reward: str, complaint: str) -> None:
    with pytest.raises(RecipeError) as caught:
        ShortRun(tmp_path, f"reward.function=tests.extending.my_reward:{reward}").check()
    assert complaint in str(caught.value)
