r"""Read a number exactly, and decide whether two numbers are the same answer.

    "1,234.50" "-\\frac{7}{3}" "2\\frac12" "5/8" "6.02\\cdot10^{23}" "2^{10}" "0.\\overline{3}" "15%"  ─► Number

This path decides most answers without the symbolic library, at some 100,000 answers a second.
"""

import re
from fractions import Fraction
from functools import lru_cache
from math import factorial
from typing import NamedTuple

LONGEST_NUMBER = 2000  # characters; Python converts up to 4,300 digits
LARGEST_POWER_BITS = 100_000  # of base ** exponent: honest problems ask for 2^{2008}
LARGEST_FACTORIAL = 3000  # honest problems ask for 2008!
LEAST_DIGITS = 6  # significant ones that a decimal needs to stand for a number without a finite decimal


class Number(NamedTuple):
    """Hold the value of a number, and what its spelling says about it."""

    value: Fraction
    digits: int = 0  # significant ones of a decimal with a point; 0: an integer or a fraction
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


_DECIMAL = r"(?:\d+\.?\d*|\.\d+)"
_SIGN = r"[-+]?"
_EXPONENT = r"(?:\{([-+]?\d+)\}|([-+]?\d))"
_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?![\d,])")
_SPACED_THOUSANDS = re.compile(r"\d{1,3}(?: \d{3})+(?:\.\d+)?")

_PLAIN = re.compile(rf"{_SIGN}{_DECIMAL}")
_FRACTION = re.compile(rf"\\frac\{{({_SIGN}{_DECIMAL})\}}\{{({_SIGN}{_DECIMAL})\}}")
_SLASH = re.compile(rf"\(?({_SIGN}{_DECIMAL})\)?/\(?({_SIGN}{_DECIMAL})\)?")
_MIXED = re.compile(r"(\d+)(?:\\frac\{(\d+)\}\{(\d+)\}|[ +](\d+)/(\d+))")
_SCIENTIFIC = re.compile(rf"({_DECIMAL})\\cdot ?10\^{_EXPONENT}")
_E_NOTATION = re.compile(rf"({_DECIMAL})[eE]([-+]?\d+)")
_POWER = re.compile(rf"(\d+)\^{_EXPONENT}")
_FACTORIAL = re.compile(r"(\d+)!")
_REPEATING = re.compile(r"(\d*)\.(\d*)\\(?:overline|bar|dot)\{?(\d+)\}?")


@lru_cache(maxsize=4096)
def read_number(text: str) -> Number | None:
    """Return the number that a cleaned answer is, or None if it is something else, or too large to write out.

    >>> read_number(r"-2\\frac{1}{2}").value
    Fraction(-5, 2)
    """
    if not text or len(text) > LONGEST_NUMBER or not any(character.isdecimal() for character in text):
        return None
    body = text.removesuffix("%")
    unsigned = body.lstrip("+-")
    negative = body[: len(body) - len(unsigned)].count("-") % 2 == 1
    unsigned = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), unsigned)
    if _SPACED_THOUSANDS.fullmatch(unsigned):
        unsigned = unsigned.replace(" ", "")
    number = _read_unsigned(unsigned)
    if number is None:
        return None
    value = -number.value if negative else number.value
    return number._replace(value=value, is_percent=body != text)


def _read_unsigned(text: str) -> Number | None:
    if match := _PLAIN.fullmatch(text):
        return _decimal(match[0])
    if match := _FRACTION.fullmatch(text) or _SLASH.fullmatch(text):
        denominator = Fraction(match[2])
        return Number(Fraction(match[1]) / denominator) if denominator else None
    if match := _MIXED.fullmatch(text):
        return _mixed(match)
    if match := _REPEATING.fullmatch(text):
        return _repeating(match[1], match[2], match[3])
    if match := _SCIENTIFIC.fullmatch(text):
        return _scaled(_decimal(match[1]), int(match[2] or match[3]))
    if match := _E_NOTATION.fullmatch(text):
        return _scaled(_decimal(match[1]), int(match[2]))
    return _large(text)


def _decimal(text: str) -> Number:
    whole, _, places = text.partition(".")
    if not places:
        return Number(Fraction(int(whole)))
    digits = len((whole + places).lstrip("+-0"))
    return Number(Fraction(text), digits, Fraction(1, 10 ** len(places)))


def _mixed(match: re.Match[str]) -> Number | None:
    numerator = int(match[2] or match[4])
    denominator = int(match[3] or match[5])
    if numerator >= denominator:
        return None  # "2 7/3" is no mixed number
    return Number(int(match[1]) + Fraction(numerator, denominator))


def _repeating(whole: str, places: str, period: str) -> Number:
    """Return the value of 0.1666… written as 0.1\\overline{6}: (16 − 1) / 90."""
    without = int((whole + places) or 0)
    through = int(whole + places + period)
    nines = (10 ** len(period) - 1) * 10 ** len(places)
    return Number(Fraction(through - without, nines))


def _scaled(mantissa: Number, exponent: int) -> Number | None:
    if abs(exponent) > LONGEST_NUMBER:
        return None
    scale = Fraction(10) ** exponent
    return mantissa._replace(value=mantissa.value * scale, step=mantissa.step * scale)


def _large(text: str) -> Number | None:
    """Return a power or a factorial that is written with digits alone, if it is not too large."""
    if match := _POWER.fullmatch(text):
        base = int(match[1])
        exponent = int(match[2] or match[3])
        if abs(exponent) * base.bit_length() > LARGEST_POWER_BITS or (base == 0 and exponent < 0):
            return None
        return Number(Fraction(base) ** exponent)
    match = _FACTORIAL.fullmatch(text)
    if match and len(match[1]) < 6 and int(match[1]) <= LARGEST_FACTORIAL:
        return Number(Fraction(factorial(int(match[1]))))
    return None


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


def is_rounded(exact: Number, decimal: Number) -> bool:
    """Tell whether `decimal` is `exact` written with six or more significant digits, where no decimal is exact."""
    if decimal.digits < LEAST_DIGITS or exact.digits or exact.has_finite_decimal:
        return False
    return abs(exact.value - decimal.value) < decimal.step
