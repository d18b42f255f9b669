"""Check the exact path on numbers of any size, in every form that it reads."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.reward.math.grader import canonical, equal, extract_answer

fractions = st.fractions(max_denominator=10**6)


def forms(value: Fraction) -> list[str]:
    sign = "-" if value < 0 else ""
    top = abs(value.numerator)
    bottom = value.denominator
    whole = top // bottom
    spelled = [
        f"{value.numerator}/{bottom}",
        rf"{sign}\frac{{{top}}}{{{bottom}}}",
        rf"$\dfrac{{{value.numerator}}}{{{bottom}}}$",
        f"x = {value.numerator}/{bottom}",
    ]
    if whole and bottom > 1:
        spelled.append(rf"{sign}{whole}\frac{{{top % bottom}}}{{{bottom}}}")
    if bottom == 1:
        spelled += [f"{value.numerator:,}", f"{value.numerator}.0", f"\\boxed{{{value.numerator}}}"]
    return spelled


@given(fractions)
def test_all_forms_of_a_number_are_one_answer(value: Fraction) -> None:
    assert {canonical(form) for form in forms(value) if not form.startswith("\\boxed")} == {str(value)}
    assert all(equal(str(value), form) for form in forms(value))


@given(fractions, fractions)
def test_different_numbers_are_different_answers(one: Fraction, other: Fraction) -> None:
    for form in forms(other):
        assert equal(str(one), form) == (one == other)


MACROS = r"\frac \sqrt \pm \sin \log \{ \} \cup \infty \% \circ \begin{pmatrix}"
PIECES = [*"{}()[]|^_,;:=<!%&+-*/ 1.x", *MACROS.split()]


@given(st.text(max_size=200) | st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_any_text_is_read_without_an_error(text: str) -> None:
    extract_answer(text)
    canonical(text)
    assert not equal("7919", text)


@pytest.mark.parametrize(
    ("exact", "decimal", "is_enough"),
    [
        ("1/3", "0.333333", True),
        ("1/3", "0.33333", False),
        ("2/3", "0.666667", True),
        ("2/3", "0.666666", True),
        ("2/3", "0.666668", False),
        ("1/3000000", "0.000000", False),
        ("3/8", "0.375001", False),
    ],
)
def test_six_digits_stand_for_a_number_without_a_finite_decimal(exact: str, decimal: str, is_enough: bool) -> None:
    assert equal(exact, decimal) == is_enough
    assert equal(decimal, exact) == is_enough
