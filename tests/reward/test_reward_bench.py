"""Check that `arl bench rewards` grades what it says it grades."""

import random

import pytest

from arl.bench import reward_bench
from arl.bench.reward_bench import GROUP_SIZE, bench_rewards
from arl.reward.math.grader import score


@pytest.mark.parametrize("make", [reward_bench._exact_group, reward_bench._algebra_group])
def test_a_group_has_right_and_wrong_answers_and_the_grader_tells_them_apart(make: reward_bench.MakeGroup) -> None:
    draw = random.Random(0)
    shares: set[float] = set()
    for _ in range(5):
        problem, responses = make(draw)
        assert len(responses) == GROUP_SIZE
        shares.update(score(problem, response)["correct"] for response in responses)
    assert shares == {0.0, 1.0}


@pytest.mark.slow
def test_every_mixture_is_measured_through_a_pool() -> None:
    report = bench_rewards(workers=1, groups=2, repeats=1)
    assert report["verifications_per_second"].keys() == {"exact", "algebra", "mixture"}
    assert all(rate > 0 for rate in report["verifications_per_second"].values())
