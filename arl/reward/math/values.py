r"""Compute what an answer is worth: by fractions as far as they go, then with 150 digits; formulas at a few points.

    "\\frac{7}{3}" "15%" "2^{2008}" "2007!"  ─► Fraction
    "\\frac{\\sqrt2}{2}" "e^{i\\pi/3}"        ─► 150 digits, by mpmath
    "x^2+2x+1"                               ─► its values at points of unrelated fractions

Formulas that agree at three points in 40 digits are equal for all that a grade is worth. No single operation takes
long, because numbers are bounded; the time limit of a comparison is looked at after each of them.
"""

import functools
import itertools
import math
import operator
import random
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from fractions import Fraction
from typing import Any

import mpmath

from arl.reward.math.forms import CONSTANTS, Form

SECONDS = 1.0  # of the CPU, for the algebra of one comparison
MAX_BITS = 100_000  # of a number, and of its binary exponent: honest problems ask for 2^{2008}
MAX_FACTORIAL = 3000  # honest problems ask for 2008!
MIN_DIGITS = 6  # significant ones that a decimal needs to stand for a number without a finite decimal
DIGITS = 150  # of the values; e^{π√163} differs from an integer only in its 31st digit
mp = mpmath.MPContext()  # of its own, because whoever else uses mpmath may change its precision
mp.dps = DIGITS
TOLERANCE = mp.mpf(10) ** -40  # relative, of equal values
ZERO = mp.mpf(10) ** -100  # a value that is not exact and below it is zero but for rounding
NUM_POINTS = 3
# The first three points differ in every sign, because roots of squares agree where all are positive.
_SIZES = (2, 2, 2, 5, 1, 20)
_SIGNS = ((1, 1), (1, -1), (-1, 1), (1, 1), (-1, 1), (1, 1))

Value = Any  # a Fraction, or a real or complex number of mpmath

_end: ContextVar[float] = ContextVar("end", default=math.inf)  # of a comparison, in CPU time of its thread


def limit_time() -> None:
    """Let this thread compute values for SECONDS of the CPU, so that a busy machine decides as an idle one does."""
    _end.set(time.thread_time() + SECONDS)


def rational(node: Form) -> Fraction | None:
    """Return the rational number that a form is; None: it is something else, or too large."""
    value = _value_or_nan(node, {})
    return value if isinstance(value, Fraction) else None


# ---- comparisons


def same_value(gold: Form, answer: Form) -> bool:
    """Tell whether two expressions have equal values, at a few points if they have variables.

    - Two finite decimals, integers or fractions are equal only if their values are: 0.15 is not 0.1500001.
    - A decimal of at least six significant digits stands for a number that has no finite decimal if it is less than
      one unit in its last place away: 0.333333 is 1/3; 0.3333 is not.
    """
    if not gold.names() | answer.names() <= CONSTANTS:
        return all(_agree(one, other) for one, other in _values_at_points(gold, answer))
    one = _value_or_nan(gold, {})
    other = _value_or_nan(answer, {})
    return _agree(one, other) or _is_rounded(one, answer, other) or _is_rounded(other, gold, one)


def same_relation(gold: Form, answer: Form) -> bool:
    """Tell whether two equations or inequalities say the same: their differences have a constant ratio."""
    if len(gold.items) != 2 or gold.text != answer.text:
        return False
    differences = [Form("+", (each.items[0], Form("-", each.items[1:]))) for each in (gold, answer)]
    ratios = [one * (1 / other) if other else mp.nan for one, other in _values_at_points(*differences)]
    if ratios[0] == 0 or not all(_agree(ratio, ratios[0]) for ratio in ratios):
        return False
    return gold.text in {"=", r"\neq"} or mp.re(ratios[0]) > 0  # -x < 1 is not x < -1


def _values_at_points(gold: Form, answer: Form) -> list[tuple[Value, Value]]:
    """Return the values of both at points of unrelated fractions, some of them for small domains.

    Points outside of the domain, where roots and logarithms choose a branch, are left out. Too few points give NaN.
    """
    names = gold.names() | answer.names()
    draw = random.Random(0)
    pairs = []
    for size, signs in zip(_SIZES, _SIGNS, strict=True):
        signed = zip(sorted(names - CONSTANTS), itertools.cycle(signs), strict=False)
        point = {name: mp.mpf(sign * size * draw.randrange(1, 10**6)) / (10**6 + 3) for name, sign in signed}
        pair = (_value_or_nan(gold, point), _value_or_nan(answer, point))
        is_complex = any(abs(mp.im(value)) > abs(value) * TOLERANCE for value in pair)  # but for rounding
        if not mp.isnan(sum(pair)) and (not is_complex or "i" in names):
            pairs.append(pair)
    return pairs if len(pairs) >= NUM_POINTS else [(mp.nan, mp.nan)]


def _is_rounded(precise: Value, decimal: Form, value: Value) -> bool:
    """Tell whether `decimal`, of this value, is `precise` written with enough digits, where no decimal is exact."""
    written = decimal.items[0] if decimal.kind == "-" else decimal
    whole, point, places = written.text.partition(".")
    digits = (whole + places).lstrip("0")
    if not (point and digits.isdigit() and len(digits) >= MIN_DIGITS):
        return False
    if isinstance(precise, Fraction) and 10 ** precise.denominator.bit_length() % precise.denominator == 0:
        return False  # it has a finite decimal
    return bool(mp.fabs(precise + -value) < mp.mpf(10) ** -len(places))


def _agree(one: Value, other: Value) -> bool:
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one == other
    difference = one + -other
    return bool(difference == 0 or abs(difference) < (abs(one) + abs(other)) * TOLERANCE)


# ---- values


def _value_or_nan(node: Form, point: Mapping[str, Value]) -> Value:
    """Return the value of an expression; NaN, which equals nothing: it has none. Zero but for rounding is zero."""
    try:
        value = _value(node, point)
    except (ArithmeticError, KeyError, NotImplementedError, TypeError, ValueError):
        return mp.nan  # mpmath raises them at poles
    is_zero = not isinstance(value, Fraction) and abs(value) < ZERO
    return mp.mpf(0) if is_zero else value


def _value(node: Form, point: Mapping[str, Value]) -> Value:
    if node.kind == "number":
        return Fraction(node.text.removesuffix("."))
    if node.kind == "symbol":
        return point[node.text] if node.text in point else +_CONSTANTS[node.text]
    name = node.text if node.kind in {"call", "unit"} else node.kind
    operation = _OPERATIONS.get(name) or _FUNCTIONS[name]
    values = [_value(item, point) for item in node.items]
    if len(values) == 1:
        return _bounded(operation(*values))
    return functools.reduce(lambda left, right: _bounded(operation(left, right)), values)


def _bounded(value: Value) -> Value:
    """Return a value that is not too large to go on with, if there is time to go on."""
    if time.thread_time() > _end.get():
        raise TimeoutError(f"no verdict within {SECONDS:g} s")
    if _num_bits(value) > MAX_BITS:
        raise ArithmeticError("it is too large")
    return value


def _num_bits(value: Value) -> int:
    """Return the bits of a fraction's larger part, or the binary exponent of a number of mpmath."""
    if isinstance(value, Fraction):
        return max(value.numerator.bit_length(), value.denominator.bit_length())
    return abs(mp.mag(value)) if mp.isnormal(value) else 0


def _power(base: Value, exponent: Value) -> Value:
    if abs(exponent) * max(_num_bits(base), 1) > MAX_BITS:
        raise ArithmeticError("it is too large")
    is_whole = isinstance(exponent, Fraction) and exponent.denominator == 1
    return base**exponent.numerator if is_whole else mp.power(base, exponent)


def _root(value: Value, degree: Value) -> Value:
    r"""Return \sqrt[3]{-8} = -2, as people write it."""
    is_odd = mp.isint(degree) and int(degree) % 2 == 1
    if is_odd and mp.im(value) == 0 and mp.re(value) < 0:
        return -mp.power(-value, 1 / degree)
    return mp.power(value, 1 / degree)


def _factorial(value: Value) -> Value:
    if abs(value) > MAX_FACTORIAL:
        raise ArithmeticError("it is too large")
    is_whole = isinstance(value, Fraction) and value.denominator == 1
    return Fraction(math.factorial(int(value))) if is_whole else mp.factorial(value)


def _binomial(above: Value, below: Value) -> Value:
    return _factorial(above) * (1 / _factorial(below)) * (1 / _factorial(above + -below))


_CONSTANTS = {r"\pi": mp.pi, "e": mp.e, "i": mp.j, r"\infty": mp.inf}
# Fractions and numbers of mpmath can be added and multiplied, but not subtracted and divided.
_OPERATIONS: dict[str, Callable[..., Value]] = {
    "+": operator.add,
    "*": operator.mul,
    "apply": operator.mul,
    "/": lambda above, below: above * (1 / below),
    "-": operator.neg,
    "|": abs,
    "^": _power,
    "!": _factorial,
    "percent": lambda value: value / 100,
    "degree": mp.radians,
    "binomial": _binomial,
    r"\sqrt": _root,
    r"\log": lambda value, base=10: mp.log(value) / mp.log(base),
}
_NAMES = ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "ln", "exp")
_FUNCTIONS = {"\\" + name: getattr(mp, name) for name in _NAMES}
_FUNCTIONS |= {"\\arc" + name: getattr(mp, "a" + name) for name in _NAMES[:6]}
