r"""Compute what an answer is worth: by fractions as far as they go, then with 150 digits; formulas at a few points.

    "\\frac{7}{3}" "15%" "2^{2008}" "2007!"  ─► Fraction
    "\\frac{\\sqrt2}{2}" "e^{i\\pi/3}"        ─► 150 digits, by mpmath
    "x^2+2x+1"                               ─► its values at points of unrelated fractions

Formulas that agree at three points in 40 digits are equal for all that a grade is worth. No single operation takes
long, because numbers are bounded; the time limit of a comparison is looked at before each of them.
"""

import contextlib
import math
import operator
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from fractions import Fraction
from functools import lru_cache
from typing import Any

import mpmath

from arl.reward.math.forms import CONSTANTS, Form

SECONDS = 1.0  # of the CPU, for the algebra of one comparison
MAX_BITS = 100_000  # of a number, and of its binary exponent: honest problems ask for 2^{2008}
MAX_FACTORIAL = 3000  # honest problems ask for 2008!
MIN_DIGITS = 6  # significant ones that a decimal needs to stand for a number without a finite decimal
DIGITS = 150  # of the values; e^{π√163} differs from an integer only in its 31st digit
TOLERANCE = mpmath.mpf(10) ** -40  # relative, of equal values
ZERO = mpmath.mpf(10) ** -100  # a value that is not exact and below it is zero but for rounding
NUM_POINTS = 3
# The first three points differ in every sign, because roots of squares agree where all are positive.
_SIZES_AND_SIGNS = ((2, (1, 1)), (2, (1, -1)), (2, (-1, 1)), (5, (1, 1)), (1, (-1, 1)), (20, (1, 1)))

Value = Any  # a Fraction, or a real or complex number of mpmath
Point = Mapping[str, Value]

_end: ContextVar[float] = ContextVar("end", default=math.inf)  # of a comparison, in CPU time of its thread
_one_at_a_time = threading.RLock()  # mpmath has one precision in a process


@contextlib.contextmanager
def bounded_algebra() -> Iterator[None]:
    """Let what is inside compute values for SECONDS of the CPU, so that a busy machine decides as an idle one does.

    Raises:
        TimeoutError: the time was over.
    """
    with _one_at_a_time, mpmath.workdps(DIGITS):
        before = _end.set(time.thread_time() + SECONDS)
        try:
            yield
        finally:
            _end.reset(before)


@lru_cache(maxsize=4096)
def rational(node: Form) -> Fraction | None:
    """Return the rational number that a form is; None: it is something else, or too large to write out."""
    if node.names():
        return None
    with _one_at_a_time:
        value = _value_or_none(node, {})
    return value if isinstance(value, Fraction) else None


def same_value(gold: Form, answer: Form) -> bool:
    """Tell whether two expressions have equal values, at a few points if they have variables.

    Points outside of the domain, where roots and logarithms choose a branch, are left out.
    """
    names = gold.names() | answer.names()
    if names <= CONSTANTS:
        return _same_constant(gold, answer)
    agreements = []
    for point in _points(names - CONSTANTS):
        values = [_value_or_none(node, point) for node in (gold, answer)]
        if None not in values and ("i" in names or not any(map(_is_complex, values))):
            agreements.append(_agree(*values))
            if not agreements[-1]:
                break
    return len(agreements) >= NUM_POINTS and all(agreements)


def _same_constant(gold: Form, answer: Form) -> bool:
    """Compare two numbers.

    - Two finite decimals, integers or fractions are equal only if their values are: 0.15 is not 0.1500001.
    - A decimal of at least six significant digits stands for a number that has no finite decimal if it is less than
      one unit in its last place away: 0.333333 is 1/3; 0.3333 is not.
    """
    one = _value_or_none(gold, {})
    other = _value_or_none(answer, {})
    if one is None or other is None:
        return False
    return _agree(one, other) or _is_rounded(one, answer, other) or _is_rounded(other, gold, one)


def _is_rounded(precise: Value, decimal: Form, value: Value) -> bool:
    """Tell whether `decimal`, of this value, is `precise` written with enough digits, where no decimal is exact."""
    step = _last_place(decimal)
    if not step or not mpmath.isfinite(precise) or _is_complex(precise):
        return False
    if isinstance(precise, Fraction) and 10**MAX_BITS % precise.denominator == 0:
        return False  # it has a finite decimal
    return bool(abs(_digits(precise) - _digits(value)) < _digits(step))


def _last_place(node: Form) -> Fraction:
    """Return one unit in the last place of a decimal of at least MIN_DIGITS significant digits; 0: it is none."""
    whole, point, places = (node.items[0] if node.kind == "-" else node).text.partition(".")
    digits = (whole + places).lstrip("0")
    is_precise = point and digits.isdigit() and len(digits) >= MIN_DIGITS
    return Fraction(1, 10 ** len(places)) if is_precise else Fraction(0)


def same_relation(gold: Form, answer: Form) -> bool:
    """Tell whether two equations or inequalities say the same: their differences have a constant ratio."""
    if len(gold.items) != 2 or gold.text != answer.text:
        return False
    differences = [Form("+", (each.items[0], Form("-", each.items[1:]))) for each in (gold, answer)]
    ratios = []
    for point in _points((gold.names() | answer.names()) - CONSTANTS):
        one, other = (_value_or_none(each, point) for each in differences)
        if one is not None and other:
            ratios.append(_digits(one) / _digits(other))
    if len(ratios) < NUM_POINTS or ratios[0] == 0 or not all(_agree(ratio, ratios[0]) for ratio in ratios):
        return False
    return gold.text in {"=", r"\neq"} or (not _is_complex(ratios[0]) and ratios[0] > 0)


def _points(names: set[str]) -> Iterator[Point]:
    """Yield points of unrelated fractions, some of them for small domains."""
    draw = random.Random(0)
    for size, signs in _SIZES_AND_SIGNS:
        point = {}
        for at, name in enumerate(sorted(names)):
            share = Fraction(draw.randrange(1, 10**6), 10**6 + 3)
            point[name] = _digits(signs[at % 2] * size * share)
        yield point


def _agree(one: Value, other: Value) -> bool:
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one == other
    difference = _digits(one) - _digits(other)
    if difference == 0 or not mpmath.isfinite(difference):
        return bool(one == other)
    return bool(abs(difference) < max(abs(_digits(one)), abs(_digits(other))) * TOLERANCE)


def _is_complex(value: Value) -> bool:
    """Tell whether a value has an imaginary part that rounding does not explain."""
    return bool(abs(mpmath.im(value)) > abs(_digits(value)) * TOLERANCE)


def _value_or_none(node: Form, point: Point) -> Value | None:
    """Return the value of an expression; None: it has none. One that is zero but for rounding is zero."""
    try:
        value = _value(node, point)
        if isinstance(value, Fraction) or abs(value) > ZERO:
            return None if mpmath.isnan(value) else value
        return mpmath.mpf(0)
    except (ArithmeticError, ValueError, TypeError, NotImplementedError):  # mpmath raises them at poles and in pits
        return None


def _value(node: Form, point: Point) -> Value:
    if node.kind == "number":
        return Fraction(node.text.removesuffix("."))
    if node.kind == "symbol":
        return point[node.text] if node.text in point else _CONSTANTS[node.text]()
    name = node.text if node.kind in {"call", "unit"} else node.kind
    if name not in _OPERATIONS:
        raise ArithmeticError(f"{name} has no value")
    operands = [_value(item, point) for item in node.items]
    is_exact = name in _EXACT and all(isinstance(operand, Fraction) for operand in operands)
    first, *others = operands if is_exact else map(_digits, operands)
    if name not in _BINARY:
        return _bounded(_OPERATIONS[name](first, *others))
    for operand in others:
        first = _bounded(_BINARY[name](first, operand))
    return first


def _bounded(value: Value) -> Value:
    """Return a value that is not too large to go on with, if there is time to go on."""
    if time.thread_time() > _end.get():
        raise TimeoutError(f"no verdict within {SECONDS:g} s")
    if isinstance(value, Fraction):
        bits = value.numerator.bit_length() + value.denominator.bit_length()
    else:
        bits = abs(mpmath.mag(value)) if mpmath.isfinite(value) and value != 0 else 0
    if bits > MAX_BITS:
        raise ArithmeticError("it is too large")
    return value


def _digits(value: Value) -> Value:
    """Return a fraction as a number of mpmath, and any other value as it is."""
    return mpmath.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def _power(base: Value, exponent: Value) -> Value:
    size = abs(mpmath.mag(_digits(base))) if base else 1
    if (not base and exponent == 0) or abs(exponent) * max(size, 1) > MAX_BITS:
        raise ArithmeticError("it is too large, or 0^0")
    if isinstance(exponent, Fraction) and exponent.denominator == 1:
        return base**exponent.numerator
    return mpmath.power(_digits(base), _digits(exponent))


def _root(value: Value, degree: Value) -> Value:
    r"""Return \sqrt[3]{-8} = -2, as people write it."""
    is_odd = mpmath.isint(degree) and int(mpmath.re(degree)) % 2 == 1
    if is_odd and mpmath.im(value) == 0 and mpmath.re(value) < 0:
        return -mpmath.power(-value, 1 / degree)
    return mpmath.power(value, 1 / degree)


def _factorial(value: Value) -> Value:
    if abs(value) > MAX_FACTORIAL:
        raise ArithmeticError("it is too large")
    if isinstance(value, Fraction) and value.denominator == 1:
        return Fraction(math.factorial(value.numerator))
    return mpmath.factorial(_digits(value))


_CONSTANTS: dict[str, Callable[[], Value]] = {
    r"\pi": lambda: +mpmath.pi,
    "e": lambda: +mpmath.e,
    "i": lambda: mpmath.mpc(0, 1),
    r"\infty": lambda: mpmath.inf,
}
_BINARY = {"+": operator.add, "*": operator.mul, "apply": operator.mul, "/": operator.truediv}
_EXACT: dict[str, Callable[..., Value]] = _BINARY | {  # of fractions, these are fractions or nearly always so
    "-": operator.neg,
    "|": abs,
    "^": _power,
    "!": _factorial,
    "percent": lambda value: value / 100,
    r"\binom": lambda above, below: _factorial(above) / _factorial(below) / _factorial(above - below),
}
_OPERATIONS = _EXACT | {
    "degree": lambda value: value * mpmath.pi / 180,
    r"\sqrt": _root,
    r"\log": lambda value, base=10: mpmath.log(value) / mpmath.log(base),
    r"\ln": mpmath.ln,
    r"\exp": mpmath.exp,
}
for _name in ("sin", "cos", "tan", "cot", "sec", "csc"):
    _OPERATIONS["\\" + _name] = getattr(mpmath, _name)
    _OPERATIONS[r"\arc" + _name] = getattr(mpmath, "a" + _name)
