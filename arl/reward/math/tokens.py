r"""Cut an answer into tokens: numbers, letters, words, macros and signs, in any script and spacing. Know units.

    "$\left(3,\tfrac{π}2\right).$"   ─►   (  3  ,  \frac  {  \pi  }  2  )

Left out are math delimiters, spaces, sizes, fonts, currency signs, and punctuation at the ends. A matrix becomes a
tuple of its rows, each of which is a tuple of its cells.
"""

import re
import unicodedata
from fractions import Fraction
from typing import NamedTuple

from arl.reward.math.vocabulary import TABLES, first_spellings, one_of, words

_PERIOD_DIGITS = 60  # of 0.1666…, from which its fraction is found

_SPELLINGS = first_spellings("spellings")
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"
_LOWERED = "₀₁₂₃₄₅₆₇₈₉"
_NOT_ASCII = re.compile(rf"[{_RAISED}]+|[{_LOWERED}]+|[^\s -~]")
_IN_BRACKETS = re.compile(r"(?s).*(?:[(\[]|\\\{)[^)\]}]*")
_FUNCTIONS = re.compile(r"(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|ln|log|lg|exp|det|gcd|lcm|max|min")
_WORDS = re.compile(rf"(?s)(?!\s*(?:\d|(?:[eid]|and|or|{_FUNCTIONS.pattern})\s*$)).*[^\W\d_]")  # what \text holds
_TYPED = re.compile(one_of("typed"))
_SIGN = re.compile(rf"[^A-Za-z]|{one_of('signs')}")
NUMBERS = words("numbers")
_WORDS_OF_LETTERS = {*words("short"), *NUMBERS}
UNITS = first_spellings("units")

_TOKEN = re.compile(
    rf"""
    (?P<times> (?<=\d)\s?[xX]\s?(?=\\?\$?\d) )
  | (?P<degree> (?: \^\s*(?:\{{\s*(?:\\circ|\\degree|°|o|\\text\s*\{{\s*o\s*\}})\s*\}}|\\circ|o(?![A-Za-z])) | °
        | \\degree(?![A-Za-z]) ) )
  | (?P<row> \\\\(?!\s*\\end) )
  | (?P<begin> \\begin\s*\{{(?:[pbB]?matrix|smallmatrix|array)\}}(?:\s*\{{[lcr|\s]*\}})? )
  | (?P<end> \\end\s*\{{[^{{}}]*\}} )
  | (?P<space> \s+ | ~ | \\[\\,;:!>\ ()\[\]$] | [$€£¥₹] | \\(?:left|right|middle|[bB]igg?[lrm]?)(?![A-Za-z])\s*\.?
      | \\{one_of("layout")}(?![A-Za-z])
      | \\(?:[hv]space\*?|phantom|color|textcolor)\s*\{{[^{{}}]*\}} )
  | \\(?:text(?:bf|it|rm|sf|tt|normal)?|mbox|hbox|emph|mathrm|operatorname\*?)\s*\{{(?P<text> [^{{}}]* )\}}
  | (?P<thousands> (?:[1-9]\d{{0,2}}(?:,\d{{3}})+(?!,?\d)|\d{{1,3}}(?:[ ]\d{{3}})+(?!\d)(?![ ]?[\d/]))(?:\.\d+)? )
  | (?P<clock> \d{{1,2}}\s?:\s?\d\d(?!\d) )
  | (?P<period> \d{{0,99}}\.\d{{0,99}}\\(?:overline|bar|dot)\s*\{{?\s*\d{{1,99}}\s*\}}? )
  | (?P<number> \d{{1,3}}(?:\s?(?:\{{\s?,\s?\}}|,?\s?\\[!,])\s*\d{{3}})+(?!\d)(?:\.\d+)?
      | (?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{{1,4}}(?![\w.]))? )
  | (?P<letters> [A-Za-z]+ )
  | \\(?P<macro> [A-Za-z]+ | . )
  | (?P<sign> <= | =< | >= | != | == | \*\* | . )
    """,
    re.VERBOSE | re.DOTALL,
)
_SIGNS = {"times": "*", "degree": r"\degree", "begin": "( (", "row": ") , (", "end": ") )"}


class Token(NamedTuple):
    """Hold one token. The kinds are number, symbol, words, function and sign."""

    kind: str
    text: str


def read_tokens(text: str) -> list[Token]:
    """Return the tokens of an answer."""
    text = _NOT_ASCII.sub(_to_ascii, text.replace("¢", r"\text{cents}"))
    text = text.strip(' $*`"').lstrip(",;:").rstrip(" .,;:$\\")
    text = re.sub("(?<=[a-z]{3})!+$", "", text)  # "Yes!" is no factorial
    if r"\begin" not in text:
        text = text.replace("\\\\", "\\")  # of data that was escaped twice; in a matrix it ends a row
    tokens: list[Token] = []
    _add_tokens(text, tokens)
    return tokens


def _add_tokens(text: str, tokens: list[Token]) -> None:
    at = 0
    while match := _TOKEN.match(text, at):
        at = match.end()
        kind = str(match.lastgroup)
        found = match[kind]
        if kind == "thousands" and _IN_BRACKETS.fullmatch(text, 0, match.start()):  # (1,234) is a pair
            found = found[: found.index("," if "," in found else " ")]
            at = match.start() + len(found)
        match kind:
            case "number" | "thousands":
                tokens.append(Token("number", re.sub(r"[^\d.eE+-]", "", found)))
            case "period":
                start, period = re.findall(r"[\d.]+", found)
                rounded = Fraction((start + period * _PERIOD_DIGITS)[:_PERIOD_DIGITS])
                tokens.append(Token("number", str(rounded.limit_denominator(10 ** (_PERIOD_DIGITS // 3)))))
            case "clock":
                tokens.append(Token("symbol", found.replace(" ", "")))
            case "text" if _WORDS.match(found):
                tokens.append(Token("words", found.strip()))
            case "text":
                _add_tokens(found, tokens)
            case "letters":
                _add_letters(found, tokens)
            case "macro":
                tokens.append(_macro(found))
            case "sign":
                is_other_spelling = found in _SPELLINGS and found not in "{}"
                tokens.append(_macro(found) if is_other_spelling else Token("sign", found))
            case "times" | "degree" | "begin" | "row" | "end":
                tokens += [Token("sign", sign) for sign in _SIGNS[kind].split()]


def _add_letters(letters: str, tokens: list[Token]) -> None:
    """Add a run of letters as a function, as a word, or as variables, each of one letter."""
    lower = letters.lower()
    last = tokens[-1] if tokens else Token("sign", "")
    is_behind_value = last.kind == "number" or last.text in {"}", r"\pi", ")"}
    is_unit = lower in UNITS and (len(letters) > 2 or (len(letters) == 2 and is_behind_value))
    is_scale = last.text == r"\degree" and letters in {"C", "F"}
    is_function = _FUNCTIONS.fullmatch(letters) and lower not in UNITS
    if is_function or _TYPED.fullmatch(lower):
        tokens.append(_macro("√" if lower == "sqrt" else lower))
    elif len(letters) > 3 or lower in _WORDS_OF_LETTERS or is_unit or is_scale or last.kind == "words":
        tokens.append(Token("words", letters))
    else:
        tokens += [Token("symbol", letter) for letter in letters]


def _macro(name: str) -> Token:
    text = _SPELLINGS.get(name, "\\" + name if name.isalpha() else name)
    if _FUNCTIONS.fullmatch(name):
        return Token("function", text)
    is_sign = not text[1:].isalpha() or _SIGN.fullmatch(text[1:])
    return Token("sign" if is_sign else "symbol", text)


def _to_ascii(match: re.Match[str]) -> str:
    """Spell raised and lowered digits, and digits of other scripts; remove control and format characters."""
    found = match[0]
    plain = unicodedata.normalize("NFKC", found)
    if found[0] in _RAISED + _LOWERED:
        return ("^" if found[0] in _RAISED else "_") + f"{{{plain}}}"
    if "⁄" in plain:
        return rf"\frac{{{plain.replace('⁄', '}{')}}}"
    visible = [character for character in plain if unicodedata.category(character) not in {"Cc", "Cf"}]
    return "".join(str(unicodedata.decimal(character, character)) for character in visible)


def read_unit(words: str) -> tuple[str, int]:
    """Return the first unit of the table in the words, else the words; and the power of ten of "million", or 0."""
    parts = re.findall("[a-z]+", words.lower())
    known = [UNITS[part] for part in parts if part in UNITS]
    known.sort(key={"unit", "degree"}.__contains__)  # of "square inches" it is the inch
    scale = TABLES["scales"].get(parts[0], 0) if parts else 0
    return known[0] if known else " ".join(parts), scale
