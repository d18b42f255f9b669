"""A recipe may have its answers graded by math-verify itself."""

import runpy
import sys
import threading

import pytest

from arl.reward.math import math_verify
from arl.types import Problem, Response


@pytest.mark.parametrize(
    ("gold", "text", "correct"),
    [
        ("She has 4 left.\n#### 1,234", r"It is \boxed{1234}.", 1.0),
        (r"\frac{1}{3}", r"<think>\boxed{1}</think> \boxed{0.3333333}", 1.0),
        (r"\text{Evelyn}", r"\boxed{\text{Evelyn}}", 1.0),
        ("5", r"\boxed{6}", 0.0),
    ],
)
def test_math_verify_grades_an_answer_in_any_thread(gold: str, text: str, correct: float) -> None:
    graded: list[dict[str, float]] = []
    problem = Problem("?", answer=gold)
    thread = threading.Thread(target=lambda: graded.append(math_verify.score(problem, Response(text))))
    thread.start()
    thread.join()
    assert graded == [{"correct": correct, "format": 1.0}]


def test_where_it_is_missing_the_message_has_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(ImportError, match=r"pip install 'math-verify>=0\.9,<0\.10'"):
        runpy.run_path(math_verify.__file__)
