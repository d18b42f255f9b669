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
_OPENING = "([{"
_CLOSING = ")]}"
_INTERVALS = {"()", "[)", "(]", "[]"}
_UNORDERED = {"list", "{}", "union", "plus-minus"}
_SET_BUILDER = re.compile(r"\\\{[a-z](?:\\in ?\\mathbb\{R\})?(?:\||:|\\mid)(.*)\\\}")
_CUP = re.compile(r"\\cup(?![A-Za-z]) ?")
_JOINT = re.compile(r"\\text\{[^{}]*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])")
_DETERMINANTS = {"vmatrix", "Vmatrix"}
_ROW_END = re.compile(r"\\\\|\\cr(?![a-z])")
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

    @property
    def has_order(self) -> bool:
        """Tell whether the same parts in another order are another answer."""
        return self.kind not in _UNORDERED


class Named(NamedTuple):
    """Hold what is said of a name: `x=…` or `x\\in…`. The text is that of the whole statement."""

    name: Name
    form: "Form"
    text: str


Form = Value | Collection | Named


def read_form(text: str, depth: int = 0) -> Form:
    """Return the form of a cleaned answer."""
    text = unwrap(text)
    set_builder = _SET_BUILDER.fullmatch(text)
    if set_builder:
        text = set_builder[1]
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
    if isinstance(inner, Value):
        return inner._replace(unit=unit)
    return inner


def unwrap(text: str) -> str:
    """Remove brackets that enclose all of an answer and say nothing: "(5)", and braces, which LaTeX does not print."""
    while len(text) > 2 and text[0] in "({" and _closes_at_end(text):
        inner = text[1:-1]
        is_tuple = text[0] == "(" and len(split_outside(inner, ",;")) > 1
        if is_tuple:
            return text
        text = inner
    return text


def split_outside(text: str, separators: str) -> list[str]:
    """Split at single characters that are outside of all brackets. Half-open intervals make ( and [ one kind."""
    parts = []
    depth = 0
    start = 0
    for index, character in enumerate(text):
        if character in _OPENING:
            depth += 1
        elif character in _CLOSING:
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
        if character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
            if depth == 0:
                return index == len(text) - 1
    return False


def _read_list(text: str, depth: int) -> Form | None:
    """Read "3,5,7", "3 and 5", "x=1;y=2"; or intervals that are joined by \\cup or "or"."""
    amount, _ = split_unit(text)
    if read_number(amount) is not None:  # 1,234 is a number
        return None
    joined = split_outside(_CUP.sub("\0", text), "\0") if r"\cup" in text else [text]
    if len(joined) > 1:
        return Collection("union", _read_all(joined, depth), text)
    spelled = _JOINT.sub(lambda match: match[0] if match[0].startswith("\\") else ",", text)  # words in macros stay
    parts = split_outside(spelled, ";")
    if len(parts) == 1:
        parts = split_outside(spelled, ",")
    parts = [part for part in parts if part.strip()]
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
    flat: list[Form] = []
    for item in items:
        if isinstance(item, Collection) and item.kind == "plus-minus":
            flat.extend(item.items)
        else:
            flat.append(item)
    return tuple(flat)


def _is_interval(form: Form) -> bool:
    if not isinstance(form, Collection):
        return False
    return form.kind in _INTERVALS and len(form.items) == 2


def _read_named(text: str, depth: int) -> Form | None:
    assignment = read_assignment(text)
    if assignment is not None:
        name, rest = assignment
        return Named(name, read_form(rest, depth + 1), text)
    inequality = read_inequality(text)
    if inequality is None:
        return None
    bounds = (Value(inequality.low), Value(inequality.high))
    interval = Collection(inequality.brackets, bounds, text)
    return Named(inequality.name, interval, text)


def _read_brackets(text: str, depth: int) -> Form | None:
    """Read pairs, tuples and intervals in brackets, and sets in braces."""
    if text.startswith(r"\{") and text.endswith(r"\}"):
        return _read_set(text, depth)
    if text[:1] not in _OPENING or not _closes_at_end(text):
        return None
    parts = split_outside(text[1:-1], ",;")
    if len(parts) < 2:
        return None
    brackets = text[0] + text[-1]
    return Collection(brackets, _read_all(parts, depth), text)


def _read_set(text: str, depth: int) -> Form | None:
    if not _closes_at_end(text.replace("\\", "")):
        return None
    parts = split_outside(text[2:-2], ",;")
    return Collection("{}", _flat(_read_all(parts, depth)), text)


def _read_matrix(text: str, depth: int) -> Form | None:
    is_enclosed = text.startswith((r"[\begin", r"(\begin"))
    match = _MATRIX.fullmatch(text[1:-1] if is_enclosed else text)
    if match is None:
        return None
    environment = match[1]
    content = match[2]
    if environment in _DETERMINANTS or r"\begin" in content:
        return None
    rows = []
    for line in _ROW_END.split(content.replace(r"\hline", "")):
        if line.strip():
            entries = _read_all(line.split("&"), depth + 1)
            rows.append(Collection("row", entries))
    return Collection("matrix", tuple(rows), text)


def _read_plus_minus(text: str, depth: int) -> Form | None:
    r"""Read `a\pm b` as two values. A sign \mp takes the other one."""
    if text.count(r"\pm") != 1:
        return None
    upper = _with_signs(text, plus_minus="+", minus_plus="-").removeprefix("+")
    lower = _with_signs(text, plus_minus="-", minus_plus="+")
    return Collection("plus-minus", _read_all([upper, lower], depth), text)


def _with_signs(text: str, plus_minus: str, minus_plus: str) -> str:
    text = re.sub(r"\\mp ?", minus_plus, text)
    return re.sub(r"\\pm ?", plus_minus, text)
