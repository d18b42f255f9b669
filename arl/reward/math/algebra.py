r"""Decide by algebra whether two expressions are equal, with math-verify and its parser.

    is_equal(gold, answer) ─► too hard? ─► parse (latex2sympy) ─► numbers, formulas, equations: by values
                                                              └─► sets, matrices, what has no values: verify

The caller bounds the time (cpu_limit), and the memory (the worker's pool).
"""

import re
from functools import cache, lru_cache
from typing import Any

from arl.reward.math.exact_numbers import read_number
from arl.reward.math.expression_limits import is_too_hard
from arl.reward.math.numeric_values import compare_values, same_relation
from arl.reward.math.symbolic_library import load_library

_WARM_UP = (
    (r"\frac{3\sqrt{2}}{2}-\frac{\pi}{4}", r"2^{1/3}+0.5\cdot e^{-2}"),
    ("2x^2-3xy+1", "(x+1)(y-2)^2"),
    (r"\sin^2 x+\cos(2x)", r"\log_2(x)+\ln 3"),
    ("(2-3i)^2", "|a_1-5|!"),
    ("y=2x+3", r"5x-7y\leq 4"),
    (r"\sum_{k=1}^n k", r"\frac{n^2}{2}"),
    (r"\{1,2\}", r"[-1,\infty)"),
)


@cache
def prepare() -> None:
    """Import the library and use each of its parts once, because the first use takes up to half a second.

    The parser keeps what it has learned of its grammar, and lanes of the pool are forked with it.
    """
    for gold, answer in _WARM_UP:
        is_equal(gold, answer)


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
    verdict = _compare_kinds(ours, theirs)
    if verdict is None and _are_expressions(ours, theirs):
        verdict = compare_values(ours, theirs, read_number(gold), read_number(answer))
    return _verify(ours, theirs) if verdict is None else verdict


def _are_expressions(*parsed: Any) -> bool:
    sympy = load_library().sympy
    return all(isinstance(one, sympy.Expr) for one in parsed)


def _compare_kinds(gold: Any, answer: Any) -> bool | None:
    """Decide where a side is an equation or an inequality; None: neither is, or it is one of sets."""
    sympy = load_library().sympy
    relation = sympy.core.relational.Relational
    are_relations = [isinstance(one, relation) for one in (gold, answer)]
    if all(are_relations):
        sides = (gold.lhs, gold.rhs, answer.lhs, answer.rhs)
        return same_relation(gold, answer) if _are_expressions(*sides) else None
    if any(are_relations) and (_are_expressions(gold) or _are_expressions(answer)):
        return False  # x+y=3 is not 3
    return None


def _differ_in_case(gold: str, answer: str) -> bool:
    """Tell whether the variables differ in case alone, which the parser does not see."""
    ours = set(re.sub(r"\\[A-Za-z]+|[^A-Za-z]", "", gold))
    theirs = set(re.sub(r"\\[A-Za-z]+|[^A-Za-z]", "", answer))
    return ours != theirs and {name.lower() for name in ours} == {name.lower() for name in theirs}


def _verify(gold: Any, answer: Any) -> bool:
    """Ask math-verify. Where it fails, nothing is known to be equal."""
    try:
        return load_library().verify(
            gold, answer, allow_set_relation_comp=True, timeout_seconds=None, raise_on_error=True
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
            formula, is_real=not library.is_complex(formula), convert_degrees=False, normalization_config=None
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
