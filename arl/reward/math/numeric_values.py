r"""Compare expressions by their values: numbers with 60 digits, formulas at a few points.

math-verify takes two numbers for equal whose difference rounds to zero, as those of 1/2^{98} and 1/2^{99} do. Here the
relative difference counts, so numbers of any size are told apart. A formula in variables is compared at points of
unrelated fractions: formulas that agree at three of them in 40 digits are equal for all that a grade is worth, and an
unequal one is found at the first point, where a symbolic proof would take a second.
"""

from fractions import Fraction
from typing import Any

from arl.reward.math.exact_numbers import Number, is_rounded
from arl.reward.math.symbolic_library import load_library

DIGITS = 60  # e^{π√163} differs from an integer only in its 31st digit
TOLERANCE = 40  # digits that equal numbers agree in
LEAST_POINTS = 3


def compare_values(gold: Any, answer: Any, ours: Number | None, theirs: Number | None) -> bool | None:
    """Tell whether two sympy expressions have equal values; None: too few of their values are known.

    Args:
        ours: the gold answer as a number, if it is written as one.
        theirs: the same of the answer.
    """
    if gold == answer:
        return True
    variables = sorted(gold.free_symbols | answer.free_symbols, key=str)
    if not variables:
        return _compare_numbers(gold, answer, ours, theirs)
    return _compare_at_points(gold, answer, variables)


def _compare_numbers(gold: Any, answer: Any, ours: Number | None, theirs: Number | None) -> bool | None:
    one = _value(gold)
    other = _value(answer)
    if one is None or other is None:
        return None
    if _agree(one, other):
        return True
    if one.is_real and other.is_real:
        return _is_rounded(one, theirs) or _is_rounded(other, ours)
    return False


def _is_rounded(exact: Any, decimal: Number | None) -> bool:
    """Tell whether a decimal is an irrational number with six or more digits. Terminating values agree exactly."""
    if decimal is None:
        return False
    numerator, denominator = load_library().sympy.Rational(str(exact)).as_numer_denom()
    stand_in = Number(Fraction(int(numerator) * 3 + 1, int(denominator) * 3))  # has no finite decimal, and is as near
    return is_rounded(stand_in, decimal)


def same_relation(gold: Any, answer: Any) -> bool:
    """Tell whether two equations or inequalities say the same: their differences have a constant ratio.

    A negative ratio turns an inequality around.
    """
    sympy = load_library().sympy
    is_equation = isinstance(gold, (sympy.Eq, sympy.Ne))
    one = gold.lhs - gold.rhs
    other = answer.lhs - answer.rhs
    if is_equation:  # multiplied by their denominators
        one = sympy.together(one).as_numer_denom()[0]
        other = sympy.together(other).as_numer_denom()[0]
    ratios = []
    for point in _points(sorted(one.free_symbols | other.free_symbols, key=str)):
        numerator = _value(one, point)
        denominator = _value(other, point)
        if numerator is not None and denominator is not None and denominator != 0:
            ratios.append(numerator / denominator)
    if len(ratios) < LEAST_POINTS or not ratios[0].is_real or ratios[0] == 0:
        return False
    if not all(_agree(ratio, ratios[0]) for ratio in ratios):
        return False
    kind = type(gold) if is_equation or ratios[0] > 0 else type(gold.reversed)
    return type(answer) is kind


def _compare_at_points(gold: Any, answer: Any, variables: list[Any]) -> bool | None:
    """Compare at a few points; None where too few of them have a real value on both sides."""
    sympy = load_library().sympy
    with_bound_variables = (sympy.Sum, sympy.Product, sympy.Integral)
    if gold.has(*with_bound_variables) or answer.has(*with_bound_variables):
        return None
    is_complex = gold.has(sympy.I) or answer.has(sympy.I)
    agreements = 0
    for point in _points(variables):
        one = _value(gold, point)
        other = _value(answer, point)
        if one is None or other is None:
            continue
        if not is_complex and not (one.is_real and other.is_real):
            continue  # outside of the domain, where roots and logarithms choose a branch
        if not _agree(one, other):
            return False
        agreements += 1
        if agreements == LEAST_POINTS:
            return True
    return None


def _value(expression: Any, at: dict[Any, Any] | None = None) -> Any:
    """Return the value of an expression with DIGITS digits; None: it has none."""
    try:
        value = expression.evalf(DIGITS, subs=at, maxn=400)
    except (ArithmeticError, AttributeError, TypeError, ValueError, NotImplementedError, RecursionError):
        return None
    sympy = load_library().sympy
    if value.is_Float and value._prec == 1:  # no digit of it is known: it is a zero that evalf cannot prove
        return sympy.Integer(0)
    if value in (sympy.oo, -sympy.oo):
        return value
    return value if value.is_number and value.is_finite and not value.has(sympy.nan, sympy.zoo, sympy.oo) else None


def _agree(one: Any, other: Any) -> bool:
    """Tell whether two values with DIGITS digits agree in TOLERANCE of them."""
    if one == other:
        return True
    sympy = load_library().sympy
    if one in (sympy.oo, -sympy.oo) or other in (sympy.oo, -sympy.oo):
        return False
    size = max(abs(one), abs(other))
    return bool(abs(one - other) < size * sympy.Rational(1, 10**TOLERANCE))


def _points(variables: list[Any]) -> list[dict[Any, Any]]:
    """Return points of unrelated fractions: one of positive ones, two of mixed signs, then others for small domains.

    The first three differ in every sign, because roots of squares agree where all are positive.
    """
    sympy = load_library().sympy
    rational = sympy.Rational
    primes = [sympy.prime(index + 2) for index in range(len(variables))]
    fractions = [[rational(prime + 2 * row, 13 + 6 * row) for prime in primes] for row in (0, 1)]
    mixed = [[rational(prime * (-1) ** (index + row), 19) for index, prime in enumerate(primes)] for row in (0, 1)]
    integers = [[rational(prime + row) for prime in primes] for row in (2, 5)]
    rows = (fractions[0], mixed[1], mixed[0], fractions[1], *integers)
    return [dict(zip(variables, row, strict=True)) for row in rows]
