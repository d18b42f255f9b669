r"""Define the parts of an answer, and build statements of them: named values, intervals, relations.

x \in [2,\infty)   ─►   named(x, [2,\infty))
2 \leq x           ─►   the same: an inequality in one name is the interval that it describes
2+3 = 5            ─►   5
x+y = 3            ─►   relation(x+y, 3)
"""

from typing import NamedTuple

_TURNED = {">": "<", r"\geq": r"\leq"}
_BEFORE_NAMES = {r"\angle", r"\triangle", r"\overline", r"\vec", r"\hat"}
CONSTANTS = {r"\pi", "e", "i", r"\infty"}


class Unreadable(ValueError):
    """Report that a text is no formula that this grammar knows."""


class Form(NamedTuple):
    """Hold one part of an answer.

    Values: number, symbol, unit, based, call and the operations + - * / ^ !; `text` is the name. Collections: list,
    set, and brackets as in "()" or "[)". Statements: named (name, value, the whole) and relation (sides; `text`
    is the signs). Else words, as they are where nothing is a formula of this grammar.
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
MINUS_INFINITY = Form("-", (INFINITY,))
REAL_LINE = Form("()", (MINUS_INFINITY, INFINITY))


def relation(sides: list[Form], signs: list[str]) -> Form:
    r"""Build what sides and the signs between them say: a named value, an interval of a name, or a relation."""
    if set(signs) <= set(_TURNED):
        return relation(sides[::-1], [_TURNED[sign] for sign in reversed(signs)])
    if r"\approx" in signs and not (len(signs) == 1 and _is_name(sides[0])):  # x=1/3\approx0.33 is 1/3
        at = signs.index(r"\approx")
        return relation(sides[: at + 1], signs[:at]) if at else sides[0]
    whole = Form("relation", tuple(sides), " ".join(signs))
    first = sides[0]
    last = sides[-1]
    if set(signs) <= {"=", r"\in", r"\approx"}:
        if _is_name(first):
            return Form("named", (first, last, whole))
        if len(sides) == 2 and _is_name(last):
            return Form("named", (last, first, whole))
        is_value = not last.names() - CONSTANTS and len(sides) > 2  # 2x+1 = 6+1 = 7
        return last if is_value or not whole.names() - CONSTANTS else whole
    if signs == [r"\neq"] and _is_variable(first):
        beside = Form("list", (_between(MINUS_INFINITY, last), _between(last, INFINITY)))
        return Form("named", (first, beside, whole))
    return _interval(sides, signs, whole)


def _interval(sides: list[Form], signs: list[str], whole: Form) -> Form:
    """Return the interval that an inequality describes; the whole where it bounds no name by values, as x<y."""
    if _is_variable(sides[0]):
        sides = [MINUS_INFINITY, *sides]
        signs = ["<", *signs]
    if _is_variable(sides[-1]):
        sides = [*sides, INFINITY]
        signs = [*signs, "<"]
    bounds_a_name = [_is_variable(side) for side in sides] == [False, True, False]
    if not bounds_a_name or not set(signs) <= {"<", r"\leq"}:
        return whole
    low, name, high = sides
    interval = _between(low, high, *signs)
    if name.text == "|":  # |x|<2, or 1<|x|<2
        name = name.items[0]
        below_zero = Form("-", (high,))
        if low == MINUS_INFINITY:
            interval = _between(below_zero, high, signs[1], signs[1])
        else:
            mirrored = _between(below_zero, Form("-", (low,)), *reversed(signs))
            interval = Form("list", (mirrored, interval))
    return Form("named", (name, interval, whole))


def _between(low: Form, high: Form, left: str = "<", right: str = "<") -> Form:
    brackets = ("(" if left == "<" else "[") + (")" if right == "<" else "]")
    return Form(brackets, (low, high))


def _is_variable(node: Form) -> bool:
    if node.text == "|":
        return _is_variable(node.items[0])
    return node.kind in {"symbol", "apply"} and node != INFINITY


def _is_name(node: Form) -> bool:
    """Tell whether a form names a quantity, so that `AB=5` means that the answer is 5."""
    if node.kind in {"symbol", "words", "apply"}:
        return True
    if node.kind == "*":  # AB is a distance, xyz a product
        texts = [item.text if item.kind == "symbol" else "" for item in node.items]
        return all(text.isupper() for text in texts) or not _BEFORE_NAMES.isdisjoint(texts)
    return (node.kind in {"()", "/", "ratio"} or node.text == "|") and all(map(_is_name, node.items))
