r"""Check which answer a response gives, and whether it counts."""

from pathlib import Path

import pytest

from arl.reward.math.grader import score
from arl.types import Problem, Response
from tests.reward.test_math_equal import pairs


def grade(gold: str, text: str, truncated: bool = False) -> dict[str, float]:
    return score(Problem("?", answer=gold), Response(text.replace("⏎", "\n"), truncated=truncated))


@pytest.mark.parametrize(("gold", "text"), pairs("answers_found.txt"))
def test_the_answer_of_a_response_is_found(gold: str, text: str) -> None:
    assert grade(gold, text)["correct"] == 1.0


@pytest.mark.parametrize(("gold", "text"), [*pairs("answers_not_found.txt"), ("5", "")])
def test_no_other_number_of_a_response_counts(gold: str, text: str) -> None:
    assert grade(gold, text)["correct"] == 0.0


TABLE = Path(__file__).with_name("answers.tsv").read_text().splitlines()[1:]  # kind, verdict, gold, response


@pytest.mark.parametrize("row", TABLE)
def test_an_answer_in_the_style_of_a_model_gets_its_verdict(row: str) -> None:
    kind, verdict, gold, text = row.split("\t")
    graded = grade(gold.replace("⏎", "\n"), text, truncated=kind == "cut off")
    assert graded["correct"] == {"right": 1.0, "wrong": 0.0}[verdict]


@pytest.mark.parametrize("text", ["The answer is 5", "#### 5", "so 5", "5\n", r"so \boxed{5"])
def test_a_response_that_was_cut_off_has_no_answer_at_its_cut(text: str) -> None:
    assert grade("5", text, truncated=True) == {"correct": 0.0, "format": 0.0}


@pytest.mark.parametrize("text", [r"\boxed{5} and", "#### 5\nnow", "The answer is 5.\nLet me"])
def test_a_response_that_was_cut_off_after_its_answer_is_graded(text: str) -> None:
    assert grade("5", text, truncated=True)["correct"] == 1.0


def test_the_format_is_judged_apart_from_the_answer() -> None:
    assert grade("5", r"\boxed{6}") == {"correct": 0.0, "format": 1.0}
    assert grade("5", "#### 6") == {"correct": 0.0, "format": 1.0}
    assert grade("5", "It is 5.") == {"correct": 1.0, "format": 0.0}
    assert grade("5", r"\boxed{5") == {"correct": 0.0, "format": 0.0}


LONG = {
    "open": r"\boxed{" * 14_000,
    "nested": r"\boxed{" * 14_000 + "1" + "}" * 14_000,
    "hashes": "#### " * 20_000,
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_response_is_read_once(name: str) -> None:
    assert grade("2", LONG[name])["correct"] == 0.0
