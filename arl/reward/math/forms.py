r"""Define the parts of an answer, and build statements of them: named values, intervals, relations.

x \in [2,\infty)   ─►   named(x, [2,\infty))
2 \leq x           ─►   the same: an inequality in one name is the interval that it describes
x+y = 3            ─►   relation(x+y, 3)
"""

from collections.abc import Sequence
from typing import NamedTuple

_BELOW = {"<", r"\leq"}
_TURNED = {">": "<", r"\geq": r"\leq"}
CONSTANTS = {r"\pi", "e", "i", r"\infty"}


class Unreadable(ValueError):
    """Report that a text is no formula that this grammar knows."""


class Form(NamedTuple):
    """Hold one part of an answer.

    Values: number, symbol, unit, based, call and the operations + - * / ^ !; `text` is the name. Collections: list,
    set, union, row, matrix, plus-minus, and brackets as in "()" or "[)". Statements: named (name, value, the whole) and
    relation (sides; `text` is the signs). Else words, or tokens that are no formula.
    """

    kind: str
    items: tuple["Form", ...] = ()
    text: str = ""

    def names(self) -> set[str]:
        """Return the names of variables and constants in an expression."""
        if self.kind in {"symbol", "words"}:
            return {self.text}
        return set().union(*(item.names() for item in self.items))


INFINITY = Form("symbol", text=r"\infty")
REAL_LINE = Form("()", (Form("-", (INFINITY,)), INFINITY))


def _is_name(node: Form) -> bool:
    """Tell whether a form names a quantity, so that `AB=5` means that the answer is 5."""
    if node.kind in {"symbol", "words", "apply"}:
        return True
    if node.kind == "*":  # AB is a distance, xyz a product
        return all(item.kind == "symbol" and item.text.isupper() for item in node.items)
    return (node.kind in {"()", "/"} or node.text == "|") and all(map(_is_name, node.items))


def relation(sides: Sequence[Form], signs: Sequence[str]) -> Form:
    r"""Build what sides and the signs between them say: a named value, an interval of a name, or a relation."""
    if set(signs) <= set(_TURNED):
        return relation(sides[::-1], [_TURNED[sign] for sign in reversed(signs)])
    whole = Form("relation", tuple(sides), " ".join(signs))
    first = sides[0]
    last = sides[-1]
    if r"\approx" in signs:  # x=1/3\approx0.33 is 1/3
        at = signs.index(r"\approx")
        if at > 0:
            return relation(sides[: at + 1], signs[:at])
        if not _is_name(first):
            return Form("named", (Form("words"), first, whole))
    if set(signs) <= {"=", r"\in", r"\approx"}:
        if _is_name(first):
            return Form("named", (first, last, whole))
        if len(sides) == 2 and _is_name(last):
            return Form("named", (last, first, whole))
        return whole if whole.names() - CONSTANTS else Form("named", (Form("words"), last, whole))  # 2+3=5
    if signs == [r"\neq"] and _is_variable(first):
        below = Form("()", (REAL_LINE.items[0], last))
        above = Form("()", (last, INFINITY))
        return Form("named", (first, Form("union", (below, above)), whole))
    return _as_interval(sides, signs, whole)


def _as_interval(sides: Sequence[Form], signs: Sequence[str], whole: Form) -> Form:
    """Return an inequality in one name as the interval that it describes, and any other as it is."""
    if len(sides) == 2:
        sides = [*sides, INFINITY] if _is_variable(last := sides[1]) else [REAL_LINE.items[0], *sides]
        signs = [*signs, "<"] if _is_variable(last) else ["<", *signs]
    is_interval = [_is_variable(side) for side in sides] == [False, True, False]
    if not is_interval or not set(signs) <= _BELOW:
        return whole  # x<y bounds neither by a number
    low, name, high = sides
    if name.kind == "call":  # |x|<2
        low = Form("-", (high,))
        name = name.items[0]
        signs = [signs[1]] * 2
    brackets = ("(" if signs[0] == "<" else "[") + (")" if signs[1] == "<" else "]")
    return Form("named", (name, Form(brackets, (low, high)), whole))


def _is_variable(node: Form) -> bool:
    return node.text == "|" or (node.kind in {"symbol", "apply"} and node != INFINITY)


def spell(form: Form) -> str:
    """Return one spelling of a form."""
    parts = list(map(spell, form.items))
    inner = ",".join(parts)
    if form.kind in {"+", "*", "/", "^"}:
        return f"({form.kind.join(parts)})"
    if len(form.kind) == 2:
        return form.kind[0] + inner + form.kind[1]
    return f"{form.text or form.kind}({inner})" if form.items else form.text
