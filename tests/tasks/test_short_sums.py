"""Short sums: no numbers of a held-out problem are in training, and the last number of an answer counts."""

import pytest

from arl.tasks.short_sums import ShortSums, Sum, pose
from arl.types import Problem, Response


def numbers(problem: Problem) -> frozenset[str]:
    question = problem.prompt[-1]["content"]  # type: ignore[index]
    words = question.removesuffix("?").split()
    return frozenset((words[2], words[4]))


def test_a_pair_of_numbers_is_on_one_side_in_both_orders_and_with_both_signs_apart() -> None:
    task = ShortSums(ShortSums.Options())
    training = task.problems("training", 0)
    held_out = task.problems("evaluation", 0)
    assert len(training) + len(held_out) == 2 * 26 * 26
    assert len(held_out) >= 256
    for sign in "+-":
        sides = [{numbers(p) for p in side if f" {sign} " in str(p.prompt[-1])} for side in (training, held_out)]
        assert sides[0].isdisjoint(sides[1])
    assert task.problems("training", 1) != training


@pytest.mark.parametrize(
    ("text", "reward"),
    [("7 - 12 = -5", 1), ("-5", 1), ("It is 4, no: -5.", 1), ("7 - 12 = 5", 0), ("-5 or 5", 0), ("five", 0), ("", 0)],
)
def test_the_last_number_is_the_answer(text: str, reward: int) -> None:
    problem = pose(Sum(7, "-", 12))
    assert ShortSums.reward(problem, Response(text)) == reward
    assert ShortSums.reward(problem, Response(text, truncated=True)) == 0
