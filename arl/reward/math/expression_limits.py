r"""Refuse expressions that would keep the symbolic library busy, or fill the memory, before it sees them.

`9^{9^{9^9}}`, `(10^9)!` and 100 kB of brackets are refused; `2^{2008}`, `10^{100}` and `2008!` are not. What passes is
still bounded by a time limit (grader.SECONDS), and by the memory limit and the deadline of the worker's pool.
"""

import re

LONGEST = 600  # characters of an expression; the longest gold answer of MATH has 159
DEEPEST = 16  # brackets in brackets
LARGEST_EXPONENT = 10_000
LARGEST_FACTORIAL = 3_000
LONGEST_INTEGER = 400  # digits
MOST_DIGITS_IN_SUM = 4  # of a bound of a sum or product

_EXPONENT = re.compile(r"\^(?:\{([^{}]*)\}|(\w))")
_TOWER = re.compile(r"\^(?:\{[^{}]*\^|\w\^)")
_FACTORIAL = re.compile(r"(\^?)(\d+)!|[)}\]](!)|!(!)")
_INTEGER = re.compile(r"\d+")
_LOOP = re.compile(r"\\(?:sum|prod|int|lim|iint|oint|binom)(?![A-Za-z])")
_HUGE_BINOMIAL = re.compile(r"\\binom\{[^{}]*\^")


def is_too_hard(text: str) -> bool:
    """Tell whether a cleaned expression must not be handed to the symbolic library."""
    integers = _INTEGER.findall(text)
    return (
        len(text) > LONGEST
        or _depth(text) > DEEPEST
        or any(len(digits) > LONGEST_INTEGER for digits in integers)
        or _has_huge_power(text)
        or any(_is_huge_factorial(match, text) for match in _FACTORIAL.finditer(text))
        or _HUGE_BINOMIAL.search(text) is not None
        or (_LOOP.search(text) is not None and any(len(digits) > MOST_DIGITS_IN_SUM for digits in integers))
    )


def _depth(text: str) -> int:
    depth = 0
    deepest = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    return deepest


def _has_huge_power(text: str) -> bool:
    r"""Tell whether an exponent is huge, or is itself a power of numbers: 2^{2^{40}}."""
    for match in _EXPONENT.finditer(text):
        exponent = match[1] if match[1] is not None else match[2]
        product = 1
        for digits in _INTEGER.findall(exponent):
            product *= max(1, int(digits))
            if product > LARGEST_EXPONENT:
                return True
    return any(character.isdigit() for character in text) and _is_numeric_tower(text)


def _is_numeric_tower(text: str) -> bool:
    """Tell whether powers are stacked more than twice, or twice with numbers that are not small."""
    towers = _TOWER.findall(text)
    if not towers:
        return False
    if re.search(r"\^(?:\{[^{}]*|\w)\^(?:\{[^{}]*|\w)\^", text):
        return True
    return any(int(digits) > 3 for digits in _INTEGER.findall(text[text.index(towers[0]) :])[:3])


def _is_huge_factorial(match: re.Match[str], text: str) -> bool:
    """Judge `5!`, `10^9!`, `(n+1)!` and `5!!` by the size of what stands before the sign."""
    if match[4]:
        return True
    if match[2]:
        return bool(match[1]) or len(match[2]) > 4 or int(match[2]) > LARGEST_FACTORIAL
    operand = text[: match.start()]
    return "^" in operand or any(len(digits) > 2 for digits in _INTEGER.findall(operand))
