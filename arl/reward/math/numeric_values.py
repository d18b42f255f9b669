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
MOST_DIGITS = 400  # that sympy may compute with, to have DIGITS of the result

# What sympy raises where an expression has no value, or where it fails to compute it. No answer is
# wrong because of it: a point without a value is left out, and where too few are left, math-verify decides.
_NO_VALUE = (
    ArithmeticError,  # \cot(0), and what needs more than MOST_DIGITS
    ValueError,  # (-1)! and other poles of the gamma function, and a sum that diverges
    TypeError,  # \arctan(1/0), because complex infinity has no parts
    AttributeError,  # \binom{0/0}{2}, because a NaN is no float of mpmath
    NotImplementedError,  # sympy says so of a function that it has no numerical method for
    RecursionError,  # a matrix in the numerator of a fraction
)


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
    triple = 3 * int(numerator)
    near = Fraction(triple + 1, 3 * int(denominator))  # has no finite decimal, and is as near
    return is_rounded(Number(near), decimal)


def same_relation(gold: Any, answer: Any) -> bool:
    """Tell whether two equations or inequalities say the same: their differences have a constant ratio.

    A negative ratio turns an inequality around.
    """
    sympy = load_library().sympy
    is_equation = isinstance(gold, (sympy.Eq, sympy.Ne))
    one = gold.lhs - gold.rhs
    other = answer.lhs - answer.rhs
    if is_equation:
        one = _without_denominator(one)
        other = _without_denominator(other)
    ratios = _ratios(one, other)
    if len(ratios) < LEAST_POINTS:
        return False
    first = ratios[0]
    if not first.is_real or first == 0:
        return False
    if not all(_agree(ratio, first) for ratio in ratios):
        return False
    is_turned = not is_equation and first < 0
    expected = gold.reversed if is_turned else gold
    return type(answer) is type(expected)


def _without_denominator(difference: Any) -> Any:
    """Return the numerator of a difference of two sides: it is zero where an equation holds."""
    fraction = load_library().sympy.together(difference)
    numerator, _ = fraction.as_numer_denom()
    return numerator


def _ratios(one: Any, other: Any) -> list[Any]:
    """Return the ratios of two expressions at those points where both have a value."""
    variables = sorted(one.free_symbols | other.free_symbols, key=str)
    ratios = []
    for point in _points(variables):
        numerator = _value(one, point)
        denominator = _value(other, point)
        if numerator is None or denominator is None or denominator == 0:
            continue
        ratios.append(numerator / denominator)
    return ratios


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
        are_real = one.is_real and other.is_real
        if not are_real and not is_complex:
            continue  # outside of the domain, where roots and logarithms choose a branch
        if not _agree(one, other):
            return False
        agreements += 1
        if agreements == LEAST_POINTS:
            return True
    return None


def _value(expression: Any, at: dict[Any, Any] | None = None) -> Any:
    """Return the value of an expression with DIGITS digits; None: it has none, or sympy cannot compute it."""
    try:
        value = expression.evalf(DIGITS, subs=at, maxn=MOST_DIGITS)
        return _known(value)
    except _NO_VALUE:
        return None


def _known(value: Any) -> Any:
    r"""Return what `evalf` has made of an expression if it is a value; None: it left it as it was, as `\pi \mod 3`."""
    if value.is_Float and value._prec == 1:  # no digit of it is known: it is a zero that evalf cannot prove
        return load_library().sympy.Integer(0)
    if _is_infinite(value):
        return value
    if not value.is_finite:
        return None
    parts = (value,) if value.is_Number else value.as_real_imag()
    return value if all(part.is_Number for part in parts) else None


def _is_infinite(value: Any) -> bool:
    sympy = load_library().sympy
    return value in (sympy.oo, -sympy.oo)


def _agree(one: Any, other: Any) -> bool:
    """Tell whether two values with DIGITS digits agree in TOLERANCE of them."""
    if one == other:
        return True
    if _is_infinite(one) or _is_infinite(other):
        return False
    size = max(abs(one), abs(other))
    tolerance = load_library().sympy.Rational(1, 10**TOLERANCE)
    return bool(abs(one - other) < size * tolerance)


def _points(variables: list[Any]) -> list[dict[Any, Any]]:
    """Return points of unrelated fractions: one of positive ones, two of mixed signs, then others for small domains.

    The first three differ in every sign, because roots of squares agree where all are positive.
    """
    sympy = load_library().sympy
    primes = [sympy.prime(index + 2) for index in range(len(variables))]
    rows = (
        _fractions(primes, above=0, below=13),
        _mixed_fractions(primes, first_sign=-1),
        _mixed_fractions(primes, first_sign=1),
        _fractions(primes, above=2, below=19),
        _fractions(primes, above=2, below=1),
        _fractions(primes, above=5, below=1),
    )
    return [dict(zip(variables, row, strict=True)) for row in rows]


def _fractions(primes: list[int], above: int, below: int) -> list[Any]:
    rational = load_library().sympy.Rational
    return [rational(prime + above, below) for prime in primes]


def _mixed_fractions(primes: list[int], first_sign: int) -> list[Any]:
    """Return fractions whose signs alternate."""
    rational = load_library().sympy.Rational
    fractions = []
    sign = first_sign
    for prime in primes:
        fractions.append(rational(sign * prime, 19))
        sign = -sign
    return fractions
