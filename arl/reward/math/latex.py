r"""Read an answer, in LaTeX or as people type it, into a form. Nothing in the text is rewritten before it is read.

    "x\in[2,\tfrac{5}2)"   ─► tokens ─► parser ─►   named(x, [)(2, /(5, 2)))
    "1\pm\sqrt5"          ─►                       set(+(1, sqrt(5)), +(1, -(sqrt(5))))
    "5\text{ cm}"         ─►                       unit(5), "centimeter"

The parser is a recursive descent, lowest first: lists, relations, sums, products, powers, single things.
"""

import contextlib
import re
from collections.abc import Callable, Mapping
from functools import lru_cache

from arl.reward.math.forms import CONSTANTS, Form, Unreadable, relation
from arl.reward.math.tokens import NUMBERS, UNITS, Token, read_tokens, read_unit

MAX_CHARACTERS = 4000
MAX_DEPTH = 60  # of a form: what computes it calls itself for each level

# Signs between parts, the weakest first. "p=5,q=2;p=7,q=2"; a union is a list of intervals
_SEPARATORS = ({";"}, {","}, {r"\cup"})
_RELATIONS = {"=", r"\neq", r"\approx", r"\in", r"\to", "<", ">", r"\leq", r"\geq"}
_KINDS = {r"\frac": "/", r"\over": "/", r"\binom": "binomial", r"\choose": "binomial"}
_LEVELS = (*_SEPARATORS, _RELATIONS, {":"}, {r"\over", r"\choose"}, {"+", "-"})
_UPPER = {r"\pm": "+", r"\mp": "-"}
_LOWER = {r"\pm": "-", r"\mp": "+"}
_CLOSING = {"(": {")", "]"}, "[": {")", "]"}, "{": {"}", r"\}"}, r"\{": {r"\}"}, "|": {"|"}}
_FUNCTIONS = set("fghFGHPE")  # f(2) names a value


@lru_cache(maxsize=4096)
def read(text: str) -> Form | None:
    """Read an answer; None: nothing is left of it, or it is too long."""
    tokens = read_tokens(text)
    if not tokens or len(text) > MAX_CHARACTERS:
        return None
    with contextlib.suppress(Unreadable, RecursionError):
        form = _Parser(tokens, _UPPER).answer()
        if any(token.text in _LOWER for token in tokens):
            form = _both(form, _Parser(tokens, _LOWER).answer())
        if _depth(form) <= MAX_DEPTH:
            return form
    return _words(text)


def _both(upper: Form, lower: Form) -> Form:
    r"""Return both values of 1\pm\sqrt5, beside the others of a list."""
    is_list = upper.kind in {"list", "set"}
    items = upper.items + lower.items if is_list else (upper, lower)
    return Form("set", tuple(dict.fromkeys(items)))


def _depth(form: Form) -> int:
    return 1 + max(map(_depth, form.items), default=0)


def _words(text: str) -> Form:
    r"""Return words in lower case, without fonts, punctuation and an article: "\\text{The Ellipse}." is "ellipse"."""
    text = re.sub(r"(?<=[a-z])-(?=[a-z])", " ", text)
    bare = re.sub(r"\\(?:text|math|oper|bold|hbox|mbox|emph|left|right)[a-z]*\*?|[{}$?'\"`]|[.,](?!\d)", "", text)
    words = bare.replace("\\", " ").strip(" !").lower().split()
    if len(words) > 1 and words[0] in {"a", "an", "the"}:
        words = words[1:]
    if len(words) == 1 and words[0] in NUMBERS:
        return _number(NUMBERS.index(words[0]))
    return Form("words", text=" ".join(words))


def _number(value: int | str) -> Form:
    return Form("number", text=str(value))


def _times(left: Form, right: Form) -> Form:
    items = left.items if left.kind == "*" else (left,)
    return Form("*", (*items, right))


def _joined(parts: list[Form], signs: list[str]) -> Form:
    if signs[0] in _RELATIONS:
        return relation(parts, signs)
    if signs[0] in _KINDS:
        return Form(_KINDS[signs[0]], (parts[0], parts[-1]))
    if signs[0] in {"+", "-"}:
        if {part.kind for part in parts} == {"()"} and len({len(part.items) for part in parts}) == 1:
            columns = zip(*(part.items for part in parts), strict=True)  # of vectors and matrices
            return Form("()", tuple(_joined([*column], signs) for column in columns))
        signed = zip(signs, parts[1:], strict=True)
        terms = [Form("-", (part,)) if sign == "-" else part for sign, part in signed]
        return Form("+", (parts[0], *terms))
    if signs[0] == ":":  # of the others to the first, so that 3:2 is 6:4
        return Form("ratio", tuple(Form("/", (part, parts[0])) for part in parts[1:]))
    return Form("list", tuple(parts))


class _Parser:
    """Read tokens from the first to the last."""

    def __init__(self, tokens: list[Token], signs: Mapping[str, str]) -> None:
        self._tokens = [token._replace(text=signs.get(token.text, token.text)) for token in tokens]
        self._tokens.append(Token("end", ""))
        self._at = 0
        self._bar = ""  # what a | closes: "|", or the element of a set that has conditions

    def answer(self) -> Form:
        node = self._list()
        if self._now.kind != "end":
            raise Unreadable(f"{self._now.text} is in the way")
        return node

    @property
    def _now(self) -> Token:
        return self._tokens[self._at]

    def _next(self) -> Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _is(self, *texts: str) -> bool:
        return self._now.kind == "sign" and self._now.text in texts

    def _skip(self, *texts: str) -> bool:
        """Skip the token if it is one of these signs."""
        is_found = self._is(*texts)
        self._at += is_found
        return is_found

    # ---- lists and statements

    def _list(self, level: int = 0) -> Form:
        """Read parts with signs of a level between them: "3,5 and 7", `x=2+3=5`, `3:2`, `1+x`."""
        if level == len(_LEVELS):
            return self._signed(self._product)
        parts = [self._list(level + 1)]
        signs: list[str] = []
        while self._is(*_LEVELS[level]) and not (self._is(":") and self._bar == r"\{"):  # of a set with a condition
            sign = self._next().text
            is_repeated = level < len(_SEPARATORS) and (self._is(sign) or self._now.kind == "end")  # "5, and 7"
            if not is_repeated:
                signs.append(sign)
                parts.append(self._list(level + 1))
        return _joined(parts, signs) if signs else parts[0]

    # ---- expressions

    def _signed(self, read_one: Callable[[], Form]) -> Form:
        if self._is("+", "-"):
            sign = self._next().text
            node = self._signed(read_one)
            return Form("-", (node,)) if sign == "-" else node
        return read_one()

    def _product(self) -> Form:
        node = self._power()
        while True:
            if self._skip("*"):
                node = _times(node, self._signed(self._power))
            elif self._skip("/"):
                node = Form("/", (node, self._signed(self._power)))
            elif self._now.kind == "words" and node.kind != "words":
                node = self._with_unit(node)
            elif self._now.kind not in {"sign", "end"} or self._is("(", "[", "{", r"\{", "" if self._bar else "|"):
                node = self._beside(node)
            else:
                return node

    def _beside(self, left: Form) -> Form:
        """Read what stands beside a factor: mostly another one."""
        token = self._now
        right = self._power()
        if "words" in (left.kind, right.kind):
            raise Unreadable("words are beside a formula")
        if left.kind == token.kind == "number":  # 2 1/2
            if not self._skip("/"):
                raise Unreadable("two numbers are side by side")
            right = Form("/", (right, self._power()))
        kinds = {part.kind for part in (left, *right.items)}
        if right.kind == "/" and token.kind != "sign" and kinds == {"number"}:  # a mixed number
            return Form("+", (left, right))
        is_call = token.text == "(" and left.kind == "symbol"
        if is_call and (left.text[0] in _FUNCTIONS or right.kind in {"symbol", "list", "()"}):
            return Form("apply", (left, right), left.text)
        return _times(left, right)

    def _with_unit(self, value: Form) -> Form:
        """Read the words behind a value, as far as they go."""
        words = []
        while self._now.kind == "words" or self._is("/", "^"):
            words.append(self._next().text)
            if words[-1] == "^":
                self._argument()
        unit, scale = read_unit(" ".join(words))
        if value.names() - CONSTANTS and (unit not in UNITS or ":" in value.text):
            raise Unreadable("words are beside letters")
        if scale:
            value = _times(value, Form("^", (_number(10), _number(scale))))
        return Form("unit", (value,), unit)

    def _power(self) -> Form:
        node = self._single(self._next())
        while self._is("^", "!", "%", r"\degree", "_"):
            sign = self._next().text
            items = (node, self._argument(whole_numbers=True)) if sign in "^_" else (node,)
            if sign in {"%", r"\degree"}:
                node = Form("unit", items[:1], "percent" if sign == "%" else "degree")
            elif sign == "_":
                node = Form("based", items[1:], node.text)
            else:
                node = Form(sign, items)
        return node

    def _single(self, token: Token) -> Form:
        readers = {"number": _number, "function": self._function, "symbol": self._command}
        if token.kind in readers:
            return readers[token.kind](token.text)
        if token.kind == "words":
            words = [token.text]
            while self._now.kind == "words":
                words.append(self._next().text)
            return _words(" ".join(words))
        if token.text in _CLOSING:
            return self._group(token.text)
        raise Unreadable(f"{token.text} is in the way")

    def _command(self, name: str) -> Form:
        if name in {r"\sqrt", r"\root"}:  # √12 is typed, and \sqrt12 is \sqrt{1}2
            root = self._power() if self._is("[") else _number(2)
            return Form("call", (self._argument(whole_numbers=name == r"\root"), root), r"\sqrt")
        if name in _KINDS:
            return Form(_KINDS[name], (self._argument(), self._argument()))
        if self._skip("_"):
            start = self._at
            self._argument(whole_numbers=True)
            name += "_" + "".join(token.text for token in self._tokens[start : self._at]).strip("{}")
        while self._skip("'"):
            name += "'"
        return Form("symbol", text=name)

    def _function(self, name: str) -> Form:
        r"""Read `\sin^2 x`, `\log_{2}16`, `\ln(x+1)`: without brackets the argument is a product of plain factors."""
        base = (self._argument(),) if self._skip("_") else ()
        exponent = self._argument() if self._skip("^") else None
        is_in_brackets = self._is("(", "[", "{", "|")
        argument = self._signed(self._power)
        while not is_in_brackets and self._now.kind in {"number", "symbol"}:
            argument = self._beside(argument)
        if UNITS.get(self._now.text) == "degree":
            self._next()
            argument = Form("unit", (argument,), "degree")
        if not is_in_brackets and self._is("/") and self._tokens[self._at + 1].kind == "number":  # \sin \pi/6
            self._next()
            argument = Form("/", (argument, self._power()))
        if exponent == Form("-", (_number(1),)):
            return Form("call", (argument,), r"\arc" + name[1:])
        call = Form("call", (argument, *base), name)
        return call if exponent is None else Form("^", (call, exponent))

    def _argument(self, whole_numbers: bool = False) -> Form:
        """Read the argument of a macro: braces, a command with its arguments, or one character.

        Args:
            whole_numbers: read all digits, because `2^10` and `√12` are typed so, though TeX takes one.
        """
        token = self._next()
        if not whole_numbers and len(token.text) > 1 and token.text.isdigit():
            self._at -= 1
            self._tokens[self._at] = token._replace(text=token.text[1:])
            return _number(token.text[0])
        if token.text == "-" and whole_numbers:
            return Form("-", (self._single(self._next()),))
        return self._single(token)

    def _group(self, opening: str) -> Form:
        if opening == r"\{" and self._skip(r"\}"):
            return Form("symbol", text=r"\emptyset")
        outer = self._bar
        self._bar = opening if opening in {"|", r"\{"} else ""
        inner = self._list()
        if opening == r"\{" and self._skip("|", ":"):  # \{x \mid x>2\} is what its condition says
            self._bar = ""
            inner = self._list()
            opening = "{"
        closing = self._next().text
        if closing not in _CLOSING[opening]:
            raise Unreadable(f"{opening} is not closed")
        self._bar = outer
        items = inner.items if inner.kind == "list" else (inner,)
        if opening == "|":
            return Form("call", items, "|")
        if opening == r"\{" and len(items) > 1:
            return Form("set", items)
        return inner if opening == "{" or inner.kind != "list" else Form(opening + closing, items)
