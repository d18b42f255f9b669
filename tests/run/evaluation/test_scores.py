"""Scores equal what their definitions say, computed the long way."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.run.evaluation.scores import (
    Sample,
    estimate,
    majority,
    pass_at_k,
    score_samples,
)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.data())
def test_pass_at_k_is_the_mean_over_all_subsets_of_the_best_sample(scores: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(scores)))
    subsets = list(itertools.combinations(scores, k))
    by_hand = sum(max(subset) for subset in subsets) / len(subsets)
    assert pass_at_k(np.array([scores]), k)[0] == pytest.approx(by_hand, abs=1e-12)


@pytest.mark.parametrize(
    ("answers", "correct", "score"),
    [
        (["2", "2", "3"], [1, 1, 0], 1.0),
        (["3", "2", "3"], [0, 1, 0], 0.0),
        (["2", "3", "4"], [1, 0, 0], 1 / 3),  # a tie of three: what a random choice gives on average
        (["2", "3", "", "", ""], [1, 0, 0, 0, 0], 0.5),  # those without an answer do not vote
        (["", ""], [1, 1], 0.0),
        (["2", "2", "2"], [1, 0, 1], 2 / 3),  # a group counts what its samples count on average
    ],
)
def test_the_majority_is_the_largest_group_of_equal_answers(
    answers: list[str], correct: list[float], score: float
) -> None:
    assert majority(answers, correct) == pytest.approx(score)


def test_an_interval_is_as_wide_as_the_normal_approximation_says() -> None:
    column = (np.arange(1000) % 10 < 3).astype(float)  # mean 0.3
    found = estimate({"a": column}, 0)["a"]
    half = 1.96 * math.sqrt(0.3 * 0.7 / 1000)
    assert found.low == pytest.approx(0.3 - half, abs=0.003)
    assert found.high == pytest.approx(0.3 + half, abs=0.003)


def sample(problem: str, number: int, correct: float, **others: object) -> Sample:
    fields: dict[str, object] = {
        "prompt": "",
        "response": "",
        "answer": "1",
        "extracted": str(int(correct)),
        "parts": {"correct": correct, "format": 1.0},
        "num_tokens": 4,
        "truncated": False,
        "error": "",
        "policy_version": 7,
    }
    return Sample(problem_id=problem, sample=number, correct=correct, **fields | others)  # type: ignore[arg-type]


def test_a_suites_score_does_not_depend_on_the_order_of_its_samples() -> None:
    samples = [
        sample("a", 0, 1.0),
        sample("a", 1, 0.0, truncated=True),
        sample("b", 0, 0.0, error="it hung"),
        sample("b", 1, 0.0),
    ]
    score = score_samples("sums", samples)
    assert score == score_samples("sums", samples[::-1])
    assert (score.problems, score.samples, score.version, score.errors) == (2, 2, 7, 1)
    assert score.average.value == 0.25
    assert score.pass_at[1].value == 0.25
    assert score.pass_at[2].value == 0.5
    assert score.majority.value == 0.25
    assert score.truncated == 0.25
    assert score.accuracy.low == score.average.low
