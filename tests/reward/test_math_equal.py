"""Check which answers are equal, by tables: each line is `gold | answer`, as people write them."""

from pathlib import Path

import pytest

from arl.reward.math.grader import canonical, equal


def pairs(name: str) -> list[tuple[str, str]]:
    """Read a table beside this file."""
    lines = Path(__file__).with_name(name).read_text().splitlines()
    split = [line.partition(" | ") for line in lines]
    return [(gold, answer) for gold, _, answer in split]


@pytest.mark.parametrize(("gold", "answer"), pairs("equal_answers.txt"))
def test_an_answer_is_right_in_any_usual_form(gold: str, answer: str) -> None:
    assert equal(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), pairs("unequal_answers.txt"))
def test_another_answer_is_wrong_however_alike_it_looks(gold: str, answer: str) -> None:
    assert not equal(gold, answer)


@pytest.mark.parametrize("nothing", ["", " ", "$$", ".", r"\,"])
def test_nothing_equals_nothing_and_no_answer(nothing: str) -> None:
    assert not equal("0", nothing)
    assert not equal(nothing, nothing)


CANONICAL = {
    "1/2": [r"\frac{1}{2}", "0.5", "2/4", "$x = .50$", r"\dfrac12"],
    "1234": ["1,234", "1234.0", r"\$1{,}234", "1234 dollars"],
    "{1,2}": [r"\{2, 1\}", "1,2", "2 and 1", "x=1 or x=2"],
    r"[0,\infty)": [r"x \ge 0", r"[0,\infty)", r"0 \leq x"],
    "C": [r"\text{(C)}", "C", "(C)"],
    "^(2,99999)": ["2^{99999}", "$2^{99999}$"],  # Python does not write out so many digits
    "(1,2)": [r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix} 1 \\ 2.0 \end{bmatrix}"],
    "evelyn": [r"\text{Evelyn}", "evelyn."],
}


@pytest.mark.parametrize("spelling", CANONICAL)
def test_votes_for_one_answer_in_several_forms_are_votes_for_one_spelling(spelling: str) -> None:
    assert {canonical(form) for form in CANONICAL[spelling]} == {spelling}
