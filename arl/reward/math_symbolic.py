r"""Decide by algebra whether two expressions are equal: math-verify, with checks of its verdicts and a time limit.

    is_equal(gold, answer) ─► too hard? ─► parse (latex2sympy) ─► numbers: 60 digits
                                                                  expressions: values at a few points, else verify
                                                                  relations, sets, matrices: verify

The library is imported on first use (a second), so that the controller never imports it; `prepare` does it ahead.

math-verify takes two numbers for equal whose difference rounds to zero, as 1/2^{98} and 1/2^{99} do. Here numbers are
therefore compared by their relative difference, and `verify` decides only what is no number.
"""

import logging
import re
import signal
import threading
import time
from collections.abc import Callable
from fractions import Fraction
from functools import cache, lru_cache
from types import FrameType
from typing import Any, NamedTuple

from arl.reward.math_limits import is_too_hard
from arl.reward.math_numbers import Number, is_rounded, read_number

DIGITS = 60  # e^{π√163} differs from an integer only in its 31st digit
TOLERANCE = 40  # digits that equal numbers agree in
REPEAT_SECONDS = 0.1  # the alarm rings again, because code in between may have swallowed it


class _OutOfTime(BaseException):
    """Break off a computation. No `except Exception` of the library stops it."""


class _Library(NamedTuple):
    sympy: Any
    latex2sympy: Callable[..., Any]
    is_complex: Callable[[str], bool]
    verify: Callable[..., bool]


@cache
def load_library() -> _Library:
    """Import sympy and math-verify, which takes a second."""
    import sympy
    from latex2sympy2_extended import latex2sympy
    from math_verify.grader import should_treat_as_complex, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own time limit is off
    return _Library(sympy, latex2sympy, should_treat_as_complex, verify)


_WARM_UP = (("x+1", "2+x"), (r"\sum_{k=1}^n k", r"\frac{n^2}{2}"), (r"\{1,2\}", r"\{1,x\}"), ("x<2", "y>3"))


@cache
def prepare() -> None:
    """Import the library and use every part of it once, because the first use of a part takes up to half a second."""
    for gold, answer in _WARM_UP:
        is_equal(gold, answer)


def run_within(seconds: float, function: Callable[[], bool | None], what: str) -> bool | None:
    """Call a function, and break it off when it has used so much time of the CPU.

    It is no time of the clock, so that a busy machine decides as an idle one does; for that, the pool has its deadline.

    Raises:
        TimeoutError: the time was over; names `what`.
        RuntimeError: called outside of the main thread of a process, where the alarm cannot be received.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("math is verified in the main thread of a process alone: its time limit is a signal")
    armed = True

    def ring(signum: int, frame: FrameType | None) -> None:
        if armed:
            raise _OutOfTime

    previous = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds, REPEAT_SECONDS)
    start = time.process_time()
    try:
        result = function()
    except _OutOfTime:
        raise TimeoutError(f"no verdict within {seconds:g} s on the answer {what}") from None
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)
    if not result and time.process_time() - start >= seconds:
        raise TimeoutError(f"no verdict within {seconds:g} s on the answer {what}")
    return result


def is_equal(gold: str, answer: str) -> bool:
    """Decide whether two cleaned expressions are equal; what cannot be parsed, or is too hard, is equal to nothing."""
    if is_too_hard(gold) or is_too_hard(answer) or _has_words(gold) or _has_words(answer):
        return False
    if _differ_in_case(gold, answer):
        return False
    ours = _parse(gold)
    theirs = _parse(answer)
    if ours is None or theirs is None:
        return False
    sympy = load_library().sympy
    relation = sympy.core.relational.Relational
    if isinstance(ours, relation) and isinstance(theirs, relation):
        return _compare_relations(ours, theirs)
    if any(
        isinstance(one, relation) and isinstance(other, sympy.Expr) for one, other in ((ours, theirs), (theirs, ours))
    ):
        return False  # x+y=3 is not 3
    if isinstance(ours, sympy.Expr) and isinstance(theirs, sympy.Expr):
        verdict = _compare_expressions(ours, theirs, read_number(gold), read_number(answer))
        if verdict is not None:
            return verdict
    return _verify(ours, theirs)


def _differ_in_case(gold: str, answer: str) -> bool:
    """Tell whether the variables differ in case alone, which the parser does not see."""
    ours = set(re.sub(r"\\[A-Za-z]+|[^A-Za-z]", "", gold))
    theirs = set(re.sub(r"\\[A-Za-z]+|[^A-Za-z]", "", answer))
    return ours != theirs and {name.lower() for name in ours} == {name.lower() for name in theirs}


def _verify(gold: Any, answer: Any) -> bool:
    """Ask math-verify. Where it fails, nothing is known to be equal."""
    try:
        return load_library().verify(
            gold,
            answer,
            allow_set_relation_comp=True,
            timeout_seconds=None,
            raise_on_error=True,
        )
    except MemoryError:
        raise
    except Exception:  # sympy raises whatever its algorithms run into
        return False


def _has_words(text: str) -> bool:
    """Tell whether a text is no formula: the parser would take its letters for variables, and "1 2" for a sum."""
    return r"\text" in text or ":" in text or re.search(r"(?<!_)\d \d", text) is not None


@lru_cache(maxsize=1024)
def _parse(text: str) -> Any:
    """Return the sympy object of a cleaned expression, with decimals as exact fractions; None: it is no formula."""
    library = load_library()
    formula = text.removesuffix("%")
    try:
        parsed = library.latex2sympy(
            formula,
            is_real=not library.is_complex(formula),
            convert_degrees=False,
            normalization_config=None,
        )
        return _in_exact_terms(parsed)
    except MemoryError:
        raise
    except Exception:  # the parser raises whatever its grammar runs into
        return None


def _in_exact_terms(parsed: Any) -> Any:
    """Write decimals as fractions, the letter i as the imaginary unit, and f(x) as a variable of its own."""
    sympy = load_library().sympy
    if not isinstance(parsed, sympy.Basic):
        return parsed
    terms = {value: sympy.Rational(str(value)) for value in parsed.atoms(sympy.Float)}
    functions = parsed.atoms(sympy.core.function.AppliedUndef)
    terms |= {function: sympy.Symbol(str(function), real=True) for function in functions}
    terms |= {symbol: sympy.I for symbol in parsed.free_symbols if symbol.name == "i"}
    return parsed.xreplace(terms) if terms else parsed


def _compare_expressions(gold: Any, answer: Any, ours: Number | None, theirs: Number | None) -> bool | None:
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
    return True if agreements >= 3 else None


def _compare_relations(gold: Any, answer: Any) -> bool:
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
    if (
        len(ratios) < 3
        or not all(_agree(ratio, ratios[0]) for ratio in ratios)
        or not ratios[0].is_real
        or ratios[0] == 0
    ):
        return False
    kind = type(gold) if is_equation or ratios[0] > 0 else type(gold.reversed)
    return type(answer) is kind


def _points(variables: list[Any]) -> list[dict[Any, Any]]:
    """Return points of unrelated fractions: two of positive ones, two of mixed signs, two of integers."""
    sympy = load_library().sympy
    rational = sympy.Rational
    primes = [sympy.prime(index + 2) for index in range(len(variables))]
    fractions = [[rational(prime + 2 * row, 13 + 6 * row) for prime in primes] for row in (0, 1)]
    mixed = [[rational(prime * (-1) ** (index + row), 19) for index, prime in enumerate(primes)] for row in (0, 1)]
    integers = [[rational(prime + row) for prime in primes] for row in (2, 5)]
    return [dict(zip(variables, row, strict=True)) for row in (*fractions, *mixed, *integers)]
