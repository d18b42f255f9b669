"""One-liners: an answer is right if it returns what it should, and tests tell every other question's answer from it."""

from collections.abc import Iterator

import pytest

from arl.config.sandbox_section import SandboxSection
from arl.sandbox.current import close_sandbox, configure
from arl.tasks.one_liners import OneLiners
from arl.types import Problem, Response


def all_problems() -> list[Problem]:
    task = OneLiners(OneLiners.Options())
    return [*task.problems("training", 0), *task.problems("evaluation", 0)]


@pytest.fixture
def in_sandbox() -> Iterator[None]:
    configure(SandboxSection(unsafe=True))
    yield
    close_sandbox()
    configure(SandboxSection())


def test_no_question_is_on_both_sides() -> None:
    task = OneLiners(OneLiners.Options())
    training, held_out = task.problems("training", 0), task.problems("evaluation", 0)
    assert {problem.id for problem in training}.isdisjoint(problem.id for problem in held_out)
    assert len(training) + len(held_out) == 5 * 4 * 18
    assert len(held_out) >= 80
    assert task.problems("training", 1) != training


def test_the_tests_of_a_question_refuse_the_solution_of_every_other_one() -> None:
    problems = all_problems()
    for problem in problems[::8]:
        cases = problem.metadata["tests"]["cases"]
        passed = [
            other.answer
            for other in problems
            if all(eval(other.answer, {"x": case["input"][0]}) == case["output"] for case in cases)
        ]
        assert passed == [problem.answer]


@pytest.mark.parametrize(
    ("text", "correct"),
    [("{answer}", 1), (" {answer}\n", 1), ("sum(list({answer}[:0] or []))", 0), ("x[", 0), ("", 0), ("{answer}\nx", 0)],
)
def test_an_answer_is_run(in_sandbox: None, text: str, correct: int) -> None:
    (problem,) = [each for each in all_problems() if each.answer == "sorted(x[:5])"]
    assert OneLiners.reward(problem, Response(text.format(answer=problem.answer)))["correct"] == correct
