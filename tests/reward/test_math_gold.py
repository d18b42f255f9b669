"""Check which gold answers can be used."""

import pytest

from arl.reward.math.grader import score, unusable
from arl.types import Problem, Response

USABLE = ["12", "-3", "2.5", r"\frac{1}{2}", "It is 2 + 2.\n#### 4", r"So $x=\boxed{3}$.", "B", "no solution", "[3, 5]"]
USABLE += [r"\{x : x > 2\}", r"\left\{1, 2\right\}", "true", "Evelyn and Carla"]


@pytest.mark.parametrize("answer", USABLE)
def test_an_answer_that_a_response_can_give_is_usable(answer: str) -> None:
    assert unusable(answer) == ""


UNUSABLE = {
    "": "it is empty",
    " \n": "it is empty",
    "She has some left.\n#### ": "it is empty",
    "$$": "nothing in it can be read",
    r"\,": "nothing in it can be read",
    '["2", "5"]': "it is a list of 2 answers, and the grader compares one",
    "['2', '5', '7']": "it is a list of 3 answers, and the grader compares one",
    "nan": "it is the mark of a missing value, or an object",
    '{"ground_truth": "12"}': "it is the mark of a missing value, or an object",
    r"\frac{1": r"its braces do not match, so no \boxed{…} can hold it",
    "First we add, and then " * 7: "it is a text of 35 words, which no final answer repeats",
    "7" * 5000: "nothing in it can be read",
}


@pytest.mark.parametrize("answer", UNUSABLE)
def test_an_answer_that_no_response_can_give_is_found_before_a_run(answer: str) -> None:
    assert unusable(answer) == UNUSABLE[answer]


def test_a_macro_in_a_list_of_one_answer_is_no_escape() -> None:
    assert score(Problem("?", answer=r"['\frac{1}{2}']"), Response(r"\boxed{0.5}"))["correct"] == 1.0


@pytest.mark.parametrize("gold", ['["$12$"]', "['12']", '[ "12" ]'])
def test_a_list_of_one_answer_is_that_answer(gold: str) -> None:
    assert score(Problem("?", answer=gold), Response(r"\boxed{12}"))["correct"] == 1.0
    assert unusable(gold) == ""
