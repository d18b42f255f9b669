"""Check the grader on every problem of GSM8K's and MATH-500's test sets: its own solution is right, others' are not."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from arl.reward.math.grader import canonical, equal, extract_answer, score
from arl.types import Problem, Response

SHIFTS = (1, 2, 3, 7, 50)


def rows(suite: str) -> list[dict[str, str]]:
    """Return the rows of a suite's test split, or skip the test where there is none."""
    root = os.environ.get("ARL_DATA")
    if root is None:
        pytest.skip(f"ARL_DATA names no directory with problem sets, so {suite} is not checked")
    path = Path(root) / suite / "test.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is absent")
    return [json.loads(line) for line in path.read_text().splitlines()]


def all_right(golds: Sequence[str], texts: Sequence[str]) -> int:
    right = {"correct": 1.0, "format": 1.0}
    pairs = zip(golds, texts, strict=True)
    return sum(score(Problem("?", answer=gold), Response(text)) == right for gold, text in pairs)


def test_the_solutions_of_gsm8k_are_right() -> None:
    solutions = [row["answer"] for row in rows("gsm8k")]
    assert all_right(solutions, solutions) == len(solutions) == 1319


def test_the_solutions_and_the_answers_of_math500_are_right() -> None:
    problems = rows("math500")
    golds = [row["answer"] for row in problems]
    assert all_right(golds, [row["solution"] for row in problems]) == len(problems) == 500
    assert all_right(golds, [rf"\boxed{{{row['answer']}}}" for row in problems]) == 500


def accepted(golds: Sequence[str], answers: Sequence[str], shift: int) -> list[tuple[str, str]]:
    """Return the pairs of unlike answers that count as equal. Those of one spelling, as 5 and x=5, are not unlike."""
    shifted = [*golds[shift:], *golds[:shift]]
    unlike = [pair for pair in zip(shifted, answers, strict=True) if canonical(pair[0]) != canonical(pair[1])]
    assert len(unlike) > len(golds) / 2
    return [(gold, answer) for gold, answer in unlike if equal(gold, answer)]


@pytest.mark.parametrize("shift", SHIFTS)
def test_the_answer_to_another_problem_of_gsm8k_is_wrong(shift: int) -> None:
    solutions = [row["answer"] for row in rows("gsm8k")]
    answers = [extract_answer(solution) or "" for solution in solutions]
    assert not accepted(answers, answers, shift)
