r"""Compute what an answer is worth: numbers exactly, all else with 150 digits, formulas at a few points.

    "\\frac{7}{3}" "15%" "2^{2008}" "2007!"  ─► Number, by fractions
    "\\frac{\\sqrt2}{2}" "e^{i\\pi/3}"        ─► 150 digits, by mpmath
    "x^2+2x+1"                               ─► its values at points of unrelated fractions

Formulas that agree at three points in 40 digits are equal for all that a grade is worth.
"""

import math
import operator
import random
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import mpmath

from arl.reward.math.forms import CONSTANTS, Form

MAX_POWER_BITS = 100_000  # of base ** exponent, and of any value: honest problems ask for 2^{2008}
MAX_FACTORIAL = 3000  # honest problems ask for 2008!
MIN_DIGITS = 6  # significant ones that a decimal needs to stand for a number without a finite decimal
DIGITS = 150  # of the values; e^{π√163} differs from an integer only in its 31st digit
TOLERANCE = mpmath.mpf(10) ** -40  # relative, of equal values
NUM_POINTS = 3
MAX_TOWER = 3  # powers in exponents

Value = Any  # a real or complex number of mpmath
Point = Mapping[str, Value]


class NoValueError(ArithmeticError):
    """Report that an expression has no value, or one that takes too long to compute."""


class Number(NamedTuple):
    """Hold an exact number, and what its spelling says about it."""

    value: Fraction
    digits: int = 0  # significant ones of a decimal with a point; 0: it is no such decimal
    step: Fraction = Fraction(0)  # one unit in the last place of such a decimal
    is_percent: bool = False

    @property
    def has_finite_decimal(self) -> bool:
        """Tell whether some decimal is exactly this number: its denominator has no primes but 2 and 5."""
        rest = self.value.denominator
        for prime in (2, 5):
            while rest % prime == 0:
                rest //= prime
        return rest == 1


@lru_cache(maxsize=4096)
def exact(node: Form) -> Number | None:
    """Return the number that a form is; None: it is something else, or too large to write out."""
    if node.kind == "number":
        return _decimal(node.text)
    if node.kind == "percent":
        number = exact(node.items[0])
        return number and number._replace(is_percent=True)
    if node.kind == "-":
        number = exact(node.items[0])
        return number and number._replace(value=-number.value)
    if node.kind == "*" and len(node.items) == 2 and _is_power_of_ten(node.items[1]):
        mantissa = exact(node.items[0])
        scale = exact(node.items[1])
        if mantissa is not None and scale is not None:
            return mantissa._replace(value=mantissa.value * scale.value, step=mantissa.step * scale.value)
    value = _fraction(node)
    return None if value is None else Number(value)


def _is_power_of_ten(node: Form) -> bool:
    return node.kind == "^" and node.items[0].text == "10"


def _decimal(text: str) -> Number:
    mantissa, _, exponent = text.lower().partition("e")
    _, _, places = mantissa.partition(".")
    value = Fraction(text.removesuffix("."))
    if not places:
        return Number(value)
    digits = len(mantissa.replace(".", "").lstrip("0"))
    return Number(value, digits, Fraction(10) ** (int(exponent or 0) - len(places)))


def _fraction(node: Form) -> Fraction | None:
    """Compute a form with fractions; None: it is no rational number, or too large to write out."""
    if node.kind == "repeating":
        return _repeating(node.text, node.items[0].text)
    operation = _EXACT.get(node.text if node.kind == "call" else node.kind)
    operands = [exact(item) for item in node.items] if operation is not None else []
    values = [operand.value / 100 if operand.is_percent else operand.value for operand in operands if operand]
    if operation is None or len(values) < len(operands):
        return None
    try:
        return Fraction(operation(*values))
    except ArithmeticError:
        return None


def _repeating(start: str, period: str) -> Fraction | None:
    r"""Return the value of 0.1666… written as 0.1\overline{6}: (16 − 1) / 90."""
    if not period.isdigit():
        return None
    whole, _, places = start.partition(".")
    without = int((whole + places) or 0)
    through = int(whole + places + period)
    nines = (10 ** len(period) - 1) * 10 ** len(places)
    return Fraction(through - without, nines)


def _raise(base: Fraction, exponent: Fraction) -> Fraction:
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if exponent.denominator != 1 or (base == 0 and exponent <= 0) or abs(exponent) * bits > MAX_POWER_BITS:
        raise NoValueError("no fraction")
    return Fraction(base**exponent.numerator)


def _factorial(number: Fraction) -> Fraction:
    if number.denominator != 1 or not 0 <= number <= MAX_FACTORIAL:
        raise NoValueError("no fraction")
    return Fraction(math.factorial(number.numerator))


def same_number(gold: Number, answer: Number) -> bool:
    """Tell whether two numbers are the same answer.

    - Two finite decimals, integers or fractions are equal only if their values are: 0.15 is not 0.1500001.
    - A decimal of at least six significant digits stands for a number that has no finite decimal if it is less than
      one unit in its last place away: 0.333333 is 1/3; 0.3333 is not.
    - A percent sign on one side alone is either a hundredth or a unit: 10% is 0.1, and it is 10.
    """
    if gold.value == answer.value or is_rounded(gold, answer) or is_rounded(answer, gold):
        return True
    if gold.is_percent != answer.is_percent:
        return gold.value == answer.value / 100 if answer.is_percent else gold.value / 100 == answer.value
    return False


def is_rounded(precise: Number, decimal: Number) -> bool:
    """Tell whether `decimal` is `precise` written with six or more significant digits, where no decimal is exact."""
    if decimal.digits < MIN_DIGITS or precise.digits or precise.has_finite_decimal:
        return False
    return abs(precise.value - decimal.value) < decimal.step


# ---- values of formulas


def same_value(gold: Form, answer: Form) -> bool:
    """Tell whether two expressions have equal values, at a few points if they have variables.

    Points outside of the domain, where roots and logarithms choose a branch, are left out.
    """
    names = gold.names() | answer.names()
    is_complex = "i" in names
    agreements = 0
    with mpmath.workdps(DIGITS):
        if names <= CONSTANTS:
            return _same_constant(gold, answer)
        for point in _points(names - CONSTANTS):
            values = [_value_or_none(node, point) for node in (gold, answer)]
            is_outside = None in values or (not is_complex and any(_is_complex(value) for value in values))
            if is_outside:
                continue
            if not _agree(*values):
                return False
            agreements += 1
            if agreements == NUM_POINTS:
                return True
    return False


def _same_constant(gold: Form, answer: Form) -> bool:
    one = _value_or_none(gold, {})
    other = _value_or_none(answer, {})
    if one is None or other is None:
        return False
    if _agree(one, other):
        return True
    if _is_complex(one) or _is_complex(other) or not mpmath.isfinite(one) or not mpmath.isfinite(other):
        return False
    for precise, decimal in ((one, exact(answer)), (other, exact(gold))):  # an irrational number with many digits
        if decimal is None or decimal.digits < MIN_DIGITS:
            continue
        if abs(precise - _to_value(decimal.value)) < _to_value(decimal.step):
            return True
    return False


def same_relation(gold: Form, answer: Form) -> bool:
    """Tell whether two equations or inequalities say the same: their differences have a constant ratio.

    A negative ratio turns an inequality around.
    """
    if len(gold.items) != 2 or len(answer.items) != 2:
        return False
    names = (gold.names() | answer.names()) - CONSTANTS
    with mpmath.workdps(DIGITS):
        ratios = list(_ratios(gold, answer, names))
    if len(ratios) < NUM_POINTS or ratios[0] == 0 or not all(_agree(ratio, ratios[0]) for ratio in ratios):
        return False
    if gold.text in {"=", r"\neq"}:
        return gold.text == answer.text
    is_turned = not _is_complex(ratios[0]) and ratios[0] < 0
    return gold.text == (_TURNED.get(answer.text, "") if is_turned else answer.text)


_TURNED = {"<": ">", ">": "<", r"\leq": r"\geq", r"\geq": r"\leq"}


def _ratios(gold: Form, answer: Form, names: set[str]) -> Iterator[Value]:
    """Yield the ratios of the differences of both sides, at points where both have a value."""
    ours = _difference(gold)
    theirs = _difference(answer)
    for point in _points(names):
        one = _value_or_none(ours, point)
        other = _value_or_none(theirs, point)
        if one is not None and other:
            yield one / other


def _difference(relation: Form) -> Form:
    """Return left − right; of an equation times its denominators, because y=2/x says what xy=2 says."""
    left, right = relation.items
    difference = Form("+", (left, Form("-", (right,))))
    denominators = _denominators(difference) if relation.text == "=" else set()
    return Form("*", (difference, *sorted(denominators)))


def _denominators(form: Form) -> set[Form]:
    found = {form.items[1]} if form.kind == "/" else set()
    for item in form.items if form.kind in {"+", "-", "*", "/"} else ():
        found |= _denominators(item)
    return found


def _points(names: set[str]) -> Iterator[Point]:
    """Yield points of unrelated fractions: positive ones, two of mixed signs, then others for small domains.

    The first three differ in every sign, because roots of squares agree where all are positive.
    """
    draw = random.Random(0)
    for low, high, signs in (
        (0, 2, (1, 1)),
        (0, 2, (1, -1)),
        (0, 2, (-1, 1)),
        (2, 5, (1, 1)),
        (0, 1, (1, 1)),
        (5, 20, (1, 1)),
    ):
        point = {}
        for at, name in enumerate(sorted(names)):
            share = Fraction(draw.randrange(1, 10**6), 10**6 + 3)
            point[name] = signs[at % 2] * _to_value(low + (high - low) * share)
        yield point


def _agree(one: Value, other: Value) -> bool:
    if one == other:
        return True
    if not mpmath.isfinite(one) or not mpmath.isfinite(other):
        return False
    return bool(abs(one - other) < max(abs(one), abs(other)) * TOLERANCE)


def _is_complex(value: Value) -> bool:
    """Tell whether a value has an imaginary part that rounding does not explain."""
    return bool(abs(mpmath.im(value)) > abs(value) * TOLERANCE)


def _value_or_none(node: Form, point: Point) -> Value | None:
    """Return the value of an expression; None: it has none. One that is zero but for rounding is zero."""
    try:
        value = _value(node, point, 0)
        if value == 0 or abs(value) > TOLERANCE or not mpmath.isfinite(value):
            return None if mpmath.isnan(value) else value
        with mpmath.workdps(2 * DIGITS):
            precise = _value(node, point, 0)
        return value if _agree(value, precise) else mpmath.mpf(0)
    except (ArithmeticError, ValueError, TypeError, NotImplementedError):  # mpmath raises them at poles and in pits
        return None


def _value(node: Form, point: Point, tower: int) -> Value:
    number = exact(node)
    if number is not None:
        return _to_value(number.value / 100 if number.is_percent else number.value)
    if node.kind == "symbol":
        return point[node.text] if node.text in point else _CONSTANTS[node.text]()
    if node.kind == "unit" and node.text == "degree":
        return _value(node.items[0], point, tower) * mpmath.pi / 180
    name = node.text if node.kind == "call" else node.kind
    tower += name == "^"
    if name not in _OPERATIONS or tower > MAX_TOWER:
        raise NoValueError(f"{name} has no value")
    value = _OPERATIONS[name](*(_value(item, point, tower) for item in node.items))
    if mpmath.isfinite(value) and value != 0 and abs(mpmath.mag(value)) > MAX_POWER_BITS:
        raise NoValueError("it is too large")
    return value


def _to_value(value: Fraction) -> Value:
    return mpmath.mpf(value.numerator) / value.denominator


def _real_root(value: Value, degree: Value) -> Value:
    r"""Return \sqrt[3]{-8} = -2, as people write it."""
    is_odd = mpmath.isint(degree) and int(mpmath.re(degree)) % 2 == 1
    if is_odd and mpmath.im(value) == 0 and mpmath.re(value) < 0:
        return -mpmath.power(-value, 1 / degree)
    return mpmath.power(value, 1 / degree)


def _small_factorial(value: Value) -> Value:
    if abs(value) > MAX_FACTORIAL:
        raise NoValueError("it is too large")
    return mpmath.factorial(value)


def _binomial(above: Value, below: Value) -> Value:
    return _small_factorial(above) / _small_factorial(below) / _small_factorial(above - below)


def _logarithm(value: Value, base: int | Value = 10) -> Value:
    return mpmath.log(value) / mpmath.log(base)


_CONSTANTS: dict[str, Callable[[], Value]] = {
    r"\pi": lambda: +mpmath.pi,
    "e": lambda: +mpmath.e,
    "i": lambda: mpmath.mpc(0, 1),
    r"\infty": lambda: mpmath.inf,
}
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "+": lambda *terms: sum(terms),
    "-": operator.neg,
    "*": lambda *factors: math.prod(factors),
    "/": operator.truediv,
    "|": abs,
}
_EXACT = _ARITHMETIC | {"^": _raise, "!": _factorial}
_OPERATIONS = _ARITHMETIC | {
    "^": mpmath.power,
    "!": _small_factorial,
    "apply": lambda *factors: math.prod(factors),
    "percent": lambda value: value / 100,
    r"\sqrt": _real_root,
    r"\binom": _binomial,
    r"\log": _logarithm,
    r"\lg": _logarithm,
    r"\ln": mpmath.ln,
}
for _name in ("exp", "sinh", "cosh", "tanh", "coth"):
    _OPERATIONS["\\" + _name] = getattr(mpmath, _name)
for _name in ("sin", "cos", "tan", "cot", "sec", "csc"):
    _OPERATIONS["\\" + _name] = getattr(mpmath, _name)
    _OPERATIONS[r"\arc" + _name] = getattr(mpmath, "a" + _name)
