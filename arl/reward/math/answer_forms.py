r"""Read a cleaned answer into its form: a value, a list, a pair, an interval, a set, a matrix, a named value.

    "x\\in[2,\\infty)"  ─►  Named("x", Collection("[)", (Value("2"), Value("\\infty"))))
    "2\\leq x"          ─►  the same: an inequality in one name is the interval that it describes
    "1\\pm\\sqrt{5}"    ─►  Collection("list", (Value("1+\\sqrt{5}"), Value("1-\\sqrt{5}")))

Reading looks only at what is outside of brackets, so that it is linear in the length of the answer for each level.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from arl.reward.math.exact_numbers import read_number
from arl.reward.math.relations import Name, read_assignment, read_inequality
from arl.reward.math.units import split_unit

DEEPEST = 8  # lists in lists; what is deeper stays one value
_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_SET_BUILDER = re.compile(r"\\\{[a-z](?:\\in ?\\mathbb\{R\})?(?:\||:|\\mid)(.*)\\\}")
_JOINT = re.compile(r"\\text\{[^{}]*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])")
_MATRIX = re.compile(r"\\begin\{([pbBvV]?matrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}", re.DOTALL)


class Value(NamedTuple):
    """Hold an answer, or a part of one, that has no parts of its own."""

    text: str
    unit: str = ""


class Collection(NamedTuple):
    """Hold parts. The kind is its brackets, as in "()" or "[)", or it is {}, list, plus-minus, union, matrix or row."""

    kind: str
    items: tuple["Form", ...]
    text: str = ""


class Named(NamedTuple):
    """Hold what is said of a name: `x=…` or `x\\in…`. The text is that of the whole statement."""

    name: Name
    form: "Form"
    text: str


Form = Value | Collection | Named


def read_form(text: str, depth: int = 0) -> Form:
    """Return the form of a cleaned answer."""
    text = unwrap(text)
    condition = _SET_BUILDER.fullmatch(text)
    text = condition[1] if condition else text
    if depth >= DEEPEST:
        return Value(text)
    for reader in (_read_list, _read_named, _read_brackets, _read_matrix, _read_plus_minus):
        form = reader(text, depth)
        if form is not None:
            return form
    value, unit = split_unit(text)
    if value == text:
        return Value(text)
    inner = read_form(value, depth + 1)
    return inner._replace(unit=unit) if isinstance(inner, Value) else inner


def unwrap(text: str) -> str:
    """Remove brackets that enclose all of an answer and say nothing: "(5)", and braces, which LaTeX does not print."""
    while len(text) > 2 and text[0] in "({" and _closes_at_end(text):
        if text[0] == "(" and len(split_outside(text[1:-1], ",;")) > 1:
            break
        text = text[1:-1]
    return text


def split_outside(text: str, separators: str) -> list[str]:
    """Split at single characters that are outside of all brackets. Half-open intervals make ( and [ one kind."""
    parts = []
    depth = 0
    start = 0
    for index, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth = max(0, depth - 1)
        elif depth == 0 and character in separators:
            parts.append(text[start:index])
            start = index + 1
    parts.append(text[start:])
    return parts


def _closes_at_end(text: str) -> bool:
    """Tell whether the bracket at the start closes at the end, and not before."""
    depth = 0
    for index, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth == 0:
                return index == len(text) - 1
    return False


def _read_list(text: str, depth: int) -> Form | None:
    """Read "3,5,7", "3 and 5", "x=1;y=2"; or intervals that are joined by \\cup or "or"."""
    if read_number(split_unit(text)[0]) is not None:  # 1,234 is a number
        return None
    union = _split_outside_word(text, r"\cup")
    if len(union) > 1:
        return Collection("union", _read_all(union, depth), text)
    spelled = _JOINT.sub(lambda match: match[0] if match[0].startswith("\\") else ",", text)
    weaker = ";" if len(split_outside(spelled, ";")) > 1 else ","
    parts = [part.strip() for part in split_outside(spelled, weaker)]
    parts = [part for part in parts if part]
    if len(parts) < 2:
        return None
    items = _read_all(parts, depth)
    if all(isinstance(item, Named) and _is_interval(item.form) for item in items):
        return Collection("union", items, text)
    return Collection("list", _flat(items), text)


def _read_all(parts: Sequence[str], depth: int) -> tuple[Form, ...]:
    return tuple(read_form(part.strip(), depth + 1) for part in parts)


def _flat(items: Sequence[Form]) -> tuple[Form, ...]:
    r"""Put the two values of `1\pm\sqrt{5}` beside the others of a list."""
    lists = [item.items if isinstance(item, Collection) and item.kind == "plus-minus" else (item,) for item in items]
    return tuple(item for part in lists for item in part)


def _is_interval(form: Form) -> bool:
    return isinstance(form, Collection) and form.kind in {"()", "[)", "(]", "[]"} and len(form.items) == 2


def _split_outside_word(text: str, word: str) -> list[str]:
    """Split at a command that is outside of all brackets."""
    if word not in text:
        return [text]
    return split_outside(re.sub(re.escape(word) + r"(?![A-Za-z]) ?", "\0", text), "\0")


def _read_named(text: str, depth: int) -> Form | None:
    assignment = read_assignment(text)
    if assignment is not None:
        name, rest = assignment
        return Named(name, read_form(rest, depth + 1), text)
    inequality = read_inequality(text)
    if inequality is None:
        return None
    bounds = Collection(inequality.brackets, (Value(inequality.low), Value(inequality.high)), text)
    return Named(inequality.name, bounds, text)


def _read_brackets(text: str, depth: int) -> Form | None:
    """Read pairs, tuples and intervals in brackets, and sets in braces."""
    braces = text.startswith(r"\{") and text.endswith(r"\}")
    inner = text[2:-2] if braces else text[1:-1]
    if not braces and not (text[:1] in _BRACKETS and text[-1:] in ")]}" and _closes_at_end(text)):
        return None
    if braces and not _closes_at_end(text.replace("\\", "")):
        return None
    parts = split_outside(inner, ",;")
    if len(parts) < 2 and not braces:
        return None
    items = _read_all(parts, depth)
    return Collection("{}", _flat(items), text) if braces else Collection(text[0] + text[-1], items, text)


def _read_matrix(text: str, depth: int) -> Form | None:
    match = _MATRIX.fullmatch(text[1:-1] if text.startswith(("[\\begin", "(\\begin")) else text)
    if match is None or match[1] in {"vmatrix", "Vmatrix"} or r"\begin" in match[2]:
        return None
    lines = [line for line in re.split(r"\\\\|\\cr(?![a-z])", match[2].replace(r"\hline", "")) if line.strip()]
    rows = tuple(Collection("row", _read_all(line.split("&"), depth + 1)) for line in lines)
    return Collection("matrix", rows, text)


def _read_plus_minus(text: str, depth: int) -> Form | None:
    r"""Read `a\pm b` as two values. A sign \mp takes the other one."""
    if text.count(r"\pm") != 1:
        return None
    upper = re.sub(r"\\pm ?", "+", re.sub(r"\\mp ?", "-", text)).removeprefix("+")
    lower = re.sub(r"\\pm ?", "-", re.sub(r"\\mp ?", "+", text))
    return Collection("plus-minus", _read_all([upper, lower], depth), text)
