r"""Read an answer, in LaTeX or as people type it, into a tree. Nothing in the text is rewritten before it is read.

    "x\\in[2,\\tfrac{5}2)"   ─► tokens ─► parser ─►   named(x, [)(2, /(5, 2)))
    "2\\leq x"               ─►                       the same: an inequality in one name is the interval it describes
    "1\\pm\\sqrt5"           ─►                       plus-minus(+(1, sqrt(5)), +(1, -(sqrt(5))))
    "5\\text{ cm}"           ─►                       unit(5), "centimeter"

The parser is a recursive descent, lowest first: lists, unions, relations, sums, products, powers, single things.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from arl.reward.math.tokens import Token, read_tokens
from arl.reward.math.units import read_unit

MAX_TOKENS = 1500

_BELOW = {"<", r"\leq"}
_FLIPPED = {"<": ">", ">": "<", r"\leq": r"\geq", r"\geq": r"\leq"}
_RELATIONS = {"=", r"\neq", r"\approx", r"\in", ":", *_FLIPPED}
_SIGNS = ("+", "-", r"\pm", r"\mp")
_CLOSING = {"(": ")]", "[": ")]", "{": "}", r"\{": (r"\}",), "|": "|"}
_MARKS = {r"\overline", r"\bar", r"\vec", r"\hat", r"\widehat", r"\tilde", r"\angle", r"\triangle", r"\measuredangle"}
_REPEATING = {r"\overline", r"\bar", r"\dot"}
_NEGATION = re.compile(r"\bno[tr]?\b|n't", re.IGNORECASE)
_OPAQUE_CALLS = set("fghFGHPE")  # f(2) is no product
_COLLECTIONS = {"list", "set", "union", "row", "matrix", "named", "()", "[)", "(]", "[]"}
CONSTANTS = {r"\pi", "e", "i", r"\infty"}


class Unreadable(ValueError):
    """Report that a text is no formula that this grammar knows."""


class Node(NamedTuple):
    """Hold one part of an answer.

    Values: number, symbol, unit, percent, based, repeating, call and the operations + - * / ^ !; `text` is the name.
    Collections: list, set, union, row, matrix, plus-minus, and brackets as in "()" or "[)". Statements: named (name,
    value, the whole) and relation (sides; `text` is the signs). Else words, or tokens that are no formula.
    """

    kind: str
    items: tuple["Node", ...] = ()
    text: str = ""

    def names(self) -> set[str]:
        """Return the names of variables and constants in an expression."""
        if self.kind in {"symbol", "words"}:
            return {self.text}
        return set().union(*(item.names() for item in self.items))


INFINITY = Node("symbol", text=r"\infty")
REAL_LINE = Node("()", (Node("-", (INFINITY,)), INFINITY))


def read(text: str) -> Node:
    """Read an answer.

    Raises:
        Unreadable: nothing is left of it.
    """
    tokens = read_tokens(text)
    if not tokens:
        raise Unreadable("it is empty")
    try:
        if len(tokens) > MAX_TOKENS:
            raise Unreadable("it is too long")
        return _Parser(tokens).answer()
    except (Unreadable, RecursionError):
        is_formula = any(token.kind == "command" or token.text[0] in "\\{}_^" for token in tokens)
        return Node("tokens", text=" ".join(token.text for token in tokens)) if is_formula else _words(text)


def _words(text: str) -> Node:
    r"""Return words in lower case, without macros, punctuation and an article: "\\text{The Ellipse}." is "ellipse"."""
    bare = re.sub(r"\\[a-z]+\*?|[{}$\\!?'\"`]|[.,](?!\d)", "", text)
    words = bare.replace("-", " ").lower().split()
    if len(words) > 1 and words[0] in {"a", "an", "the"}:
        words = words[1:]
    return Node("words", text=" ".join(words))


class _Parser:
    """Read tokens from the first to the last."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = [*tokens, Token("end", "")]
        self._at = 0
        self._bar = ""  # what a | closes: "|", or the element of a set that has conditions

    def answer(self) -> Node:
        is_labeled = self._now.kind == "words" and self._tokens[1].kind == "number"
        if is_labeled and not _NEGATION.search(self._now.text):
            self._next()  # "about 5"
        self._skip(":")
        node = self._list()
        if self._now.kind != "end":
            raise Unreadable(f"{self._now.text} is in the way")
        return _expand_signs(node)

    @property
    def _now(self) -> Token:
        return self._tokens[self._at]

    def _next(self) -> Token:
        token = self._now
        self._at += 1
        return token

    def _is(self, *texts: str) -> bool:
        return self._now.kind == "sign" and self._now.text in texts

    def _skip(self, *texts: str) -> bool:
        """Skip the token if it is one of these signs."""
        is_found = self._is(*texts)
        self._at += is_found
        return is_found

    # ---- lists and statements

    def _list(self) -> Node:
        """Read "3,5 and 7", or "p=5,q=2;p=7,q=2"."""
        return self._separated("list", ";", self._commas)

    def _commas(self) -> Node:
        node = self._separated("list", ",", self._union)
        are_intervals = all(
            item.kind == "named" and item.items[1].kind in {"()", "[)", "(]", "[]"} for item in node.items
        )
        return node._replace(kind="union") if node.kind == "list" and are_intervals else node

    def _union(self) -> Node:
        return self._separated("union", r"\cup", self._statement)

    def _separated(self, kind: str, separator: str, read_one: Callable[[], Node]) -> Node:
        parts = [read_one()]
        while self._skip(separator):
            if not self._is(separator) and self._now.kind != "end":  # "5, and 7"
                parts.append(read_one())
        return parts[0] if len(parts) == 1 else Node(kind, tuple(parts))

    def _statement(self) -> Node:
        r"""Read `x=2+3=5`, `0\leq x<1`, `3:2`, or an expression."""
        sides = [self._sum()]
        signs: list[str] = []
        while self._is(*_RELATIONS) and not (self._is(":") and self._bar == r"\{"):
            signs.append(self._next().text)
            sides.append(self._sum())
        return _relation(sides, signs) if signs else sides[0]

    # ---- expressions

    def _signed(self, read_one: Callable[[], Node]) -> Node:
        sign = ""
        while self._is(*_SIGNS):
            text = self._next().text
            if text != "+":
                sign = "" if sign == text == "-" else text
        node = read_one()
        return Node(sign, (node,)) if sign else node

    def _sum(self) -> Node:
        terms = [self._signed(self._product)]
        while self._is(*_SIGNS):
            terms.append(self._signed(self._product))
        return terms[0] if len(terms) == 1 else Node("+", tuple(terms))

    def _product(self) -> Node:
        node = self._power()
        while True:
            if self._skip("*"):
                node = _times(node, self._signed(self._power))
            elif self._skip("/"):
                node = Node("/", (node, self._signed(self._power)))
            elif self._now.kind == "words" and node.kind != "words":
                node = self._with_unit(node)
            elif self._starts_factor():
                node = self._beside(node)
            else:
                return node

    def _starts_factor(self) -> bool:
        is_sign = self._now.kind in {"sign", "end"}
        return not is_sign or self._is("(", "[", "{", r"\{") or (self._is("|") and not self._bar)

    def _beside(self, left: Node) -> Node:
        """Read what stands beside a factor: mostly another one."""
        token = self._now
        right = self._power()
        if "words" in (left.kind, right.kind):
            raise Unreadable("words are beside a formula")
        if left.kind == token.kind == "number":  # 2 1/2
            if not self._skip("/"):
                raise Unreadable("two numbers are side by side")
            right = Node("/", (right, self._power()))
        if left.kind == "number" and right.kind == "/" and token.text in {r"\frac", right.items[0].text}:
            return _add_fraction(left, right)
        is_call = token.text == "(" and not token.is_spaced and left.kind == "symbol"
        if is_call and (left.text[0] in _OPAQUE_CALLS or right.kind in {"symbol", "list", "()"}):
            return (
                Node("symbol", text=f"{left.text}({spell(right)})")
                if left.text[0] in _OPAQUE_CALLS
                else Node("apply", (left, right))
            )
        return _times(left, right)

    def _with_unit(self, value: Node) -> Node:
        """Read the words behind a value, as far as they go."""
        if value.kind == "*" and all(item.kind == "symbol" for item in value.items):
            raise Unreadable("words are beside letters")
        words = []
        while self._now.kind == "words" or self._is("/", "^"):
            words.append(self._next().text)
            if words[-1] == "^":
                self._argument()
        unit = read_unit(" ".join(words))
        if unit.scale:
            value = _times(value, Node("^", (Node("number", text="10"), Node("number", text=str(unit.scale)))))
        if unit.name == "percent":
            return value if value.kind == "percent" else Node("percent", (value,))
        return Node("unit", (value,), unit.name)

    def _power(self) -> Node:
        node = self._single(self._next())
        while self._is("^", "!", "%", r"\degree", "_"):
            sign = self._next().text
            items = (node, self._argument(whole_numbers=True)) if sign in "^_" else (node,)
            if sign == r"\degree" or items[-1].text == r"\circ":
                node = Node("unit", items[:1], "degree")
            elif sign == "_":
                node = Node("based", items[1:], node.text)
            else:
                node = Node("percent" if sign == "%" else sign, items)
        return node

    def _single(self, token: Token) -> Node:
        if token.kind == "number":
            if self._now.text in _REPEATING and "." in token.text:
                self._next()
                return Node("repeating", (self._argument(whole_numbers=True),), token.text)
            return Node("number", text=token.text)
        if token.kind == "words":
            words = [token.text]
            while self._now.kind == "words":
                words.append(self._next().text)
            return _words(" ".join(words))
        if token.kind == "function":
            return self._function(token.text)
        if token.text in _CLOSING:
            return self._group(token.text)
        if token.kind in {"symbol", "command"}:
            return self._command(token.text)
        if token.text == r"\begin":
            return self._matrix()
        raise Unreadable(f"{token.text or 'the end'} is in the way")

    def _command(self, name: str) -> Node:
        if name in {r"\frac", r"\binom"}:
            pair = (self._argument(), self._argument())
            return Node("/", pair) if name == r"\frac" else Node("call", pair, name)
        if name == r"\sqrt":
            root = self._power() if self._is("[") else Node("number", text="2")
            return Node("call", (self._argument(whole_numbers=True), root), name)
        if name in _MARKS:
            return Node("symbol", text=f"{name} {spell(self._argument())}")
        if self._skip("_"):
            name += "_" + spell(self._argument(whole_numbers=True))
        while self._skip("'"):
            name += "'"
        return Node("symbol", text=name)

    def _function(self, name: str) -> Node:
        r"""Read `\sin^2 x`, `\log_{2}16`, `\ln(x+1)`: without brackets the argument is a product of plain factors."""
        base = (self._argument(),) if self._skip("_") else ()
        exponent = self._argument() if self._skip("^") else None
        argument = self._power() if self._is("(", "[", "{", "|") else self._signed(self._plain_product)
        if exponent is not None and spell(exponent) == "-1":
            return Node("call", (argument,), r"\arc" + name[1:])
        call = Node("call", (argument, *base), name)
        return call if exponent is None else Node("^", (call, exponent))

    def _plain_product(self) -> Node:
        node = self._power()
        while self._now.kind in {"number", "symbol", "command"}:
            node = self._beside(node)
        if self._is("/") and self._tokens[self._at + 1].kind == "number":
            self._next()
            node = Node("/", (node, self._power()))
        return node

    def _argument(self, whole_numbers: bool = False) -> Node:
        """Read the argument of a macro: braces, a command with its arguments, or one character.

        Args:
            whole_numbers: read all digits, because `2^10` and `√12` are typed so, though TeX takes one.
        """
        token = self._next()
        if token.kind == "number" and not whole_numbers and len(token.text) > 1:
            self._at -= 1
            self._tokens[self._at] = token._replace(text=token.text[1:])
            return Node("number", text=token.text[0])
        if token.text == "-" and whole_numbers:
            return Node("-", (self._single(self._next()),))
        return self._single(token)

    def _group(self, opening: str) -> Node:
        outer = self._bar
        self._bar = opening if opening in {"|", r"\{"} else ""
        inner = INFINITY if self._is(r"\}") else self._list()
        if opening == r"\{" and self._skip("|", ":"):  # \{x \mid x>2\} is what its condition says
            self._bar = ""
            inner = self._list()
            opening = "{"
        closing = self._next().text
        if closing not in _CLOSING[opening] and closing != r"\}":
            raise Unreadable(f"{opening} is not closed")
        self._bar = outer
        if opening == r"\{":
            is_empty = self._tokens[self._at - 2].text == opening
            items = inner.items if inner.kind == "list" else (inner,)
            return Node("symbol", text=r"\emptyset") if is_empty else Node("set", items)
        if opening == "|":
            return Node("call", (inner,), "|")
        return inner if opening == "{" or inner.kind != "list" else Node(opening + closing, inner.items)

    def _matrix(self) -> Node:
        rows: list[Node] = []
        cells: list[Node] = []
        separator = ""
        while separator != r"\end":
            if not self._is("&", r"\\", r"\end"):
                cells.append(self._list())
            separator = self._next().text
            if separator not in {"&", r"\\", r"\end"}:
                raise Unreadable("a matrix does not end")
            if separator != "&" and cells:
                rows.append(Node("row", tuple(cells)))
                cells = []
        return Node("matrix", tuple(rows))


def _times(left: Node, right: Node) -> Node:
    items = left.items if left.kind == "*" else (left,)
    return Node("*", (*items, right))


def _add_fraction(whole: Node, fraction: Node) -> Node:
    r"""Read 2\frac12 as a mixed number. "2 7/3" is none."""
    texts = [item.text for item in (whole, *fraction.items)]
    if not all(text.isdigit() for text in texts):
        return _times(whole, fraction)
    if int(texts[1]) >= int(texts[2]):
        raise Unreadable("a mixed number has a fraction above 1")
    return Node("+", (whole, fraction))


def _expand_signs(node: Node) -> Node:
    r"""Write 1\pm\sqrt5 as two values, and put them beside the others of a list."""
    if node.kind in _COLLECTIONS:
        items: list[Node] = []
        for item in map(_expand_signs, node.items):
            is_beside = item.kind == "plus-minus" and node.kind in {"list", "set"}
            items.extend(item.items if is_beside else [item])
        return node._replace(items=tuple(items))
    upper = _with_signs(node, upper=True)
    return node if upper == node else Node("plus-minus", (upper, _with_signs(node, upper=False)))


def _with_signs(node: Node, upper: bool) -> Node:
    items = tuple(_with_signs(item, upper) for item in node.items)
    if node.kind not in {r"\pm", r"\mp"}:
        return node._replace(items=items)
    return items[0] if (node.kind == r"\pm") == upper else Node("-", items)


# ---- statements


def _is_name(node: Node) -> bool:
    """Tell whether a node names a quantity, so that `AB=5` means that the answer is 5."""
    if node.kind in {"symbol", "words", "apply"}:
        return True
    if node.kind == "*":  # AB is a distance, xyz a product
        return all(item.kind == "symbol" and item.text.isupper() for item in node.items)
    return (node.kind in {"()", "/"} or node.text == "|") and all(_is_name(item) for item in node.items)


def _relation(sides: Sequence[Node], signs: Sequence[str]) -> Node:
    r"""Build what sides and the signs between them say: a named value, an interval of a name, or a relation."""
    whole = Node("relation", tuple(sides), " ".join(signs))
    first, last = sides[0], sides[-1]
    if signs[0] == r"\approx" and not _is_name(first):
        return Node("named", (Node("words"), first, whole))
    if r"\approx" in signs[1:]:  # x=1/3\approx0.33 is 1/3
        at = signs.index(r"\approx")
        return _relation(sides[: at + 1], signs[:at])
    if set(signs) <= {"=", r"\in", r"\approx"}:
        if _is_name(first):
            return Node("named", (first, last, whole))
        if len(sides) == 2 and _is_name(last):
            return Node("named", (last, first, whole))
        return whole if whole.names() - CONSTANTS else Node("named", (Node("words"), last, whole))  # 2+3=5
    if signs == [r"\neq"] and _is_variable(first):
        halves = (Node("()", (REAL_LINE.items[0], last)), Node("()", (last, INFINITY)))
        return Node("named", (first, Node("union", halves), whole))
    return _as_interval(sides, signs, whole)


def _as_interval(sides: Sequence[Node], signs: Sequence[str], whole: Node) -> Node:
    """Return an inequality in one name as the interval that it describes, and any other as it is."""
    if not set(signs) <= _BELOW:
        sides = sides[::-1]
        signs = [_FLIPPED.get(sign, "") for sign in reversed(signs)]
    if len(sides) == 2 and _is_variable(sides[0]):
        sides = [REAL_LINE.items[0], *sides]
        signs = ["<", *signs]
    elif len(sides) == 2:
        sides = [*sides, INFINITY]
        signs = [*signs, "<"]
    is_interval = [_is_variable(side) for side in sides] == [False, True, False]
    if not is_interval or not set(signs) <= _BELOW:
        return whole  # x<y bounds neither by a number
    low, name, high = sides
    if name.kind == "call":  # |x|<2
        low, name = Node("-", (high,)), name.items[0]
        signs = [signs[1], signs[1]]
    brackets = ("(" if signs[0] == "<" else "[") + (")" if signs[1] == "<" else "]")
    return Node("named", (name, Node(brackets, (low, high)), whole))


def _is_variable(node: Node) -> bool:
    return node.text == "|" or (node.kind in {"symbol", "apply"} and node != INFINITY)


def spell(node: Node) -> str:
    """Return one spelling of a node."""
    parts = [spell(item) for item in node.items]
    if node.kind == "-":
        return "-" + parts[0]
    if node.kind == "^":
        return f"{parts[0]}^{{{parts[1]}}}"
    inner = ",".join(parts)
    if len(node.kind) == 2:
        return node.kind[0] + inner + node.kind[1]
    return f"{node.text or node.kind}({inner})" if parts else node.text
