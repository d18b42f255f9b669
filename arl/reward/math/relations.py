r"""Read what an answer says of a name: `x=5`, `f(x)=2x+1`, `(x,y)=(1,2)`, `x\\in[0,1)`, `0\\leq x<1`, `AB\\approx3`."""

import re
from typing import NamedTuple

Name = str

_GREEK = r"\\(?:alpha|beta|gamma|delta|epsilon|theta|lambda|mu|nu|rho|sigma|tau|phi|varphi|psi|omega|ell|Delta)"
_INDEX = r"(?:_(?:\w|\{[^{}]*\}))?"
_VARIABLE = rf"(?:[A-Za-z]|{_GREEK}){_INDEX}'*"
_POINTS = rf"m?(?:\\(?:angle|overline|triangle|widehat|hat|vec|bar|measuredangle)\s?)*\{{?[A-Z]{{1,4}}\}}?{_INDEX}"
_CALL = rf"(?:{_VARIABLE}|\\mathbb\{{[A-Z]\}})(?:\^\{{?-1\}}?)?[(\[][^()\[\]=<>]*[)\]]"
_WORDS = r"(?:\\text\{[^{}]*\}|[A-Za-z]{4,}(?: [A-Za-z]+)*)"
_LABEL = rf"(?:{_VARIABLE}|{_POINTS}|\|{_POINTS}\||\|{_VARIABLE}\||{_CALL}|{_WORDS})"
_TERM = rf"(?:{_POINTS}|{_VARIABLE})"
_QUOTIENT = rf"\\frac\{{{_TERM}\}}\{{{_TERM}\}}|{_TERM}[:/]{_TERM}"
_TUPLE = rf"\({_VARIABLE}(?:,{_VARIABLE})+\)"
_NAME = re.compile(rf"{_LABEL}|{_QUOTIENT}|{_TUPLE}")
_BOUNDED = re.compile(rf"{_VARIABLE}|{_CALL}")

_EQUALS = re.compile(r"(?<![<>!=\\])=(?!=)|\\(?:equiv|coloneqq)(?![A-Za-z])")
_APPROXIMATELY = re.compile(r"\\approx(?![A-Za-z]) ?")
_MEMBER = re.compile(r"\\in(?![A-Za-z]) ?")
_RELATION = re.compile(r"(\\[lg]eq(?![A-Za-z])|<|>)")
_ABSOLUTE = re.compile(rf"\|({_VARIABLE})\|(<|\\leq) ?(\d+)")
_LONGEST_NAME = 60


_COMMAND = re.compile(r"\\[A-Za-z]+")
_FLIPPED = {"<": ">", ">": "<", r"\leq": r"\geq", r"\geq": r"\leq"}
_BELOW = {"<", r"\leq"}
_CLOSED = {r"\leq", r"\geq"}


class Inequality(NamedTuple):
    """Hold an inequality in one name as the interval that it describes."""

    name: Name
    brackets: str
    low: str
    high: str


def is_name(text: str) -> bool:
    """Tell whether a text names a quantity, so that `text=5` means that the answer is 5."""
    return len(text) <= _LONGEST_NAME and _NAME.fullmatch(text) is not None


def read_assignment(text: str) -> tuple[Name, str] | None:
    r"""Return the name and what it is: the last member of a chain `x=2+3=5`, the exact one of `x=1/3\approx0.33`.

    The name is empty where a computation stands before the sign, as in `2+3=5`; None: the answer is no assignment.
    """
    member = _MEMBER.split(text)
    if len(member) == 2 and is_name(member[0]):
        return member[0], member[1]
    exact, *rounded = _APPROXIMATELY.split(text)
    sides = [side.strip() for side in _EQUALS.split(exact)]
    if rounded and not sides[-1]:
        return "", rounded[-1]
    if rounded and len(sides) == 1:
        return (sides[0], rounded[-1]) if is_name(sides[0]) else ("", sides[0])
    if len(sides) == 1 or not sides[-1] or _RELATION.search(exact):
        return None
    if is_name(sides[0]):
        return sides[0], sides[-1]
    if len(sides) == 2 and is_name(sides[1]):
        return sides[1], sides[0]
    if _is_computation(exact):
        return "", sides[-1]
    return None


def _is_computation(text: str) -> bool:
    """Tell whether a text has neither names nor words."""
    if r"\text" in text:
        return False
    return not re.search("[A-Za-z]", _COMMAND.sub("", text))


def read_inequality(text: str) -> Inequality | None:
    r"""Return `a<x\leq b`, `x>a` or `a\geq x` as an interval; None: another relation, or more than one name."""
    absolute = _ABSOLUTE.fullmatch(text)
    if absolute:
        brackets = "()" if absolute[2] == "<" else "[]"
        return Inequality(absolute[1], brackets, f"-{absolute[3]}", absolute[3])
    pieces = _RELATION.split(text)
    terms = [piece.strip() for piece in pieces[0::2]]
    signs = pieces[1::2]
    if not all(terms) or "=" in text:
        return None
    if len(terms) == 2:
        return _one_sided(terms, signs[0])
    if len(terms) == 3:
        return _two_sided(terms, signs)
    return None


def _one_sided(terms: list[str], sign: str) -> Inequality | None:
    name, bound = terms
    if not _is_bounded(name):
        bound, name = terms
        sign = _FLIPPED[sign]
    if not _is_bounded(name) or _is_bounded(bound):
        return None  # x<y bounds neither by a number
    if sign in _BELOW:
        return Inequality(name, "(" + _closing(sign), r"-\infty", bound)
    return Inequality(name, _opening(sign) + ")", bound, r"\infty")


def _two_sided(terms: list[str], signs: list[str]) -> Inequality | None:
    low, name, high = terms
    first, second = signs
    if first not in _BELOW:
        high, name, low = terms
        first = _FLIPPED[signs[1]]
        second = _FLIPPED[signs[0]]
    if first not in _BELOW or second not in _BELOW:
        return None
    if not _is_bounded(name) or _is_bounded(low) or _is_bounded(high):
        return None
    return Inequality(name, _opening(first) + _closing(second), low, high)


def _opening(sign: str) -> str:
    return "[" if sign in _CLOSED else "("


def _closing(sign: str) -> str:
    return "]" if sign in _CLOSED else ")"


def _is_bounded(term: str) -> bool:
    return len(term) <= _LONGEST_NAME and _BOUNDED.fullmatch(term) is not None
