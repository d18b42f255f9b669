"""What becomes of episodes that a reward function does not grade, and how named parts are weighed."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from arl.errors import GradingError, RewardError
from arl.reward.grading import RewardCallable
from arl.reward.scorer import MAX_UNGRADED_PROBLEMS, InlineRewards, OnError, Scorer, UngradedLog
from arl.types import Grade, Problem, Response
from tests.reward.hostile import obey, parts

PROBLEM = Problem("?", answer="yes")


def scorer(
    directory: Path,
    function: RewardCallable = obey,
    weights: Mapping[str, float] | None = None,
    on_error: OnError = "zero",
    note: Callable[[str], None] = lambda text: None,
) -> Scorer:
    rewards = InlineRewards({"mine:score": function}, UngradedLog(directory / "logs" / "reward.log", note))
    return Scorer(rewards, "mine:score", weights or {}, on_error)


def grades(given: Scorer, *texts: str, problem: Problem = PROBLEM) -> list[Grade]:
    return [asyncio.run(given.score(problem, Response(text))) for text in texts]


def test_zero_grades_the_episode_0_and_names_the_cause_in_grade_and_log(tmp_path: Path) -> None:
    honest, broken = grades(scorer(tmp_path), "honest", "raise")
    assert honest == Grade(1.0)
    assert (broken.reward, broken.parts) == (0.0, {})
    assert broken.error.startswith("ValueError: cannot judge this (_raise, line ")
    log = (tmp_path / "logs" / "reward.log").read_text()
    assert log == f"no grade: problem {PROBLEM.id}: {broken.error}; the answer begins 'raise'\n"


@pytest.mark.parametrize(
    ("on_error", "error", "message"),
    [
        ("drop", RewardError, rf"mine:score on problem {PROBLEM.id}: (?s:.*)in _raise\n"),
        ("stop", GradingError, "zero or drop would go on"),
    ],
)
def test_drop_is_an_error_of_the_group_and_stop_one_of_the_run(
    tmp_path: Path, on_error: OnError, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        grades(scorer(tmp_path, on_error=on_error), "honest", "raise")


def test_a_function_that_grades_nothing_ends_the_run_although_errors_are_zeros(tmp_path: Path) -> None:
    broken = scorer(tmp_path)
    for number in range(MAX_UNGRADED_PROBLEMS - 1):
        grades(broken, "raise", "raise", problem=Problem(str(number)))
    with pytest.raises(
        GradingError, match=f"not one episode of the last {MAX_UNGRADED_PROBLEMS} problems(?s:.*)Traceback"
    ):
        grades(broken, "raise", "raise")


def test_the_reward_is_the_weighted_sum_of_parts_and_a_part_without_a_weight_counts_1(tmp_path: Path) -> None:
    (grade,) = grades(scorer(tmp_path, parts, {"format": 0.25}), "yes")
    assert grade == Grade(1.25, {"correct": 1.0, "format": 1.0})
