r"""Cut an answer into tokens: numbers, letters, words, macros and signs, in any script and spacing. Know units.

    "$\left(3,\tfrac{π}2\right).$"   ─►   (  3  ,  \frac  {  \pi  }  2  )

Left out are math delimiters, spaces, sizes, fonts, currency signs, and punctuation at the ends. A unit is not asked
for: "5" is right where "5 cm" is gold. Only two units of the table that differ make an answer wrong.
"""

import re
import unicodedata
from typing import NamedTuple

MAX_DIGITS = 2000  # of a number; Python converts up to 4,300

_CHARACTERS = {
    r"\cdot ": "×·⋅∗",
    "/": "÷⁄∕",
    "-": "‐‑‒–—−﹣",
    r"\leq ": "≤⩽",
    r"\geq ": "≥⩾",
    r"^{\circ}": "°",
    r"\mathbb{R}": "ℝ",
    "'": "’",
    "$": "€£¥₹",
    r"\text{cents}": "¢",
}
_NAMES = dict(
    zip("√∞≠≈±∓∪∩∈∅", ["sqrt", "infty", "neq", "approx", "pm", "mp", "cup", "cap", "in", "emptyset"], strict=True)
)
_GREEK = dict(zip("πθαβγλμωφ", ["pi", "theta", "alpha", "beta", "gamma", "lambda", "mu", "omega", "phi"], strict=True))
_SYMBOLS = {character: text for text, characters in _CHARACTERS.items() for character in characters}
_SYMBOLS |= {character: rf"\{name} " for character, name in (_NAMES | _GREEK).items()}
_TABLE = str.maketrans(_SYMBOLS)
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_LOWERED = re.compile("[₀₁₂₃₄₅₆₇₈₉]+")
_VULGAR_FRACTION = re.compile("[¼-¾⅐-⅞]")

_FUNCTIONS = re.compile(r"(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|ln|log|lg|exp|det|gcd|lcm|max|min")
_TYPED_MACRO = re.compile(r"pi|sqrt|theta|alpha|beta|gamma|lambda|infty|infin(?:ity)?|inf|oo")  # without a backslash
_SHORT_WORDS = set(
    re.findall(
        "[a-z]+",
        "all and ann any big bob boy cat cow day dog eve few fri girl hat jan jim joe kim lee low man mar may mia mon "
        "new no none not now odd off old on one out own pen pig red sam same sat six sun ten the tie tim tom too top "
        "true tue two up way wed win won yes yet zoe both only",
    )
)
_SAME = {  # spellings of one macro or sign
    r"\frac": "dfrac tfrac cfrac",
    r"\binom": "dbinom tbinom",
    r"\emptyset": "varnothing",
    r"\infty": "infin infinity inf oo",
    "*": "cdot times ast bullet",
    "|": "lvert rvert vert mid lVert rVert Vert |",
    r"\leq": "leq le leqslant <= =<",
    r"\geq": "geq ge geqslant >=",
    r"\neq": "neq ne !=",
    r"\approx": "approx approxeq simeq",
    "=": "equiv coloneqq ==",
    "^": "**",
    ",": "lor land and or",
    "<": "lt",
    ">": "gt",
    "/": "div",
    ":": "colon",
    "[": "lbrack",
    "]": "rbrack",
    "(": "langle",
    ")": "rangle",
    r"\{": "lbrace {",
    r"\}": "rbrace }",
}
_SPELLINGS = {spelling: text for text, spellings in _SAME.items() for spelling in spellings.split()}
_RELATIONS = {r"\leq", r"\geq", r"\neq", r"\approx", r"\{", r"\}"}
_SIGN_MACROS = re.compile(r"[^A-Za-z]|in|cup|pm|mp|degree|begin|end")
_UNREADABLE = re.compile(r"sum|prod|i*o*int|lim|[bp]?mod|[lc]?dots|to|cap|setminus")

_SPACE = r"""
    \s+ | ~ | \\[,;:!>\ ()\[\]$] | [$] | \\(?:left|right|middle|[bB]igg?[lrm]?)(?![A-Za-z])\s*\.?
    | \\(?:quad|qquad|thinspace|enspace|medspace|displaystyle|textstyle|scriptstyle|limits|nolimits|boldmath|rm|bf|it
          |boxed|fbox|mathbf|mathit|mathsf|mathcal|boldsymbol|bm|underline|hline)(?![A-Za-z])
    | \\(?:[hv]space\*?|phantom|color|textcolor)\s*\{[^{}]*\}
"""
_TEXT = r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|mbox|hbox|emph|mathrm|operatorname\*?)\s*\{(?P<inner>[^{}]*)\}"
_GROUPED = r"\d{1,3}(?:\s?(?:\{\s?,\s?\}|,?\s?\\[!,])\s*\d{3})+(?!\d)(?:\.\d+)?"
_COMMAS = r"[1-9]\d{0,2}(?:,\d{3})+(?![\d,])(?:\.\d+)?|\d{1,3}(?:[ ]\d{3})+(?!\d)(?![ ]?[\d/])(?:\.\d+)?"
_PLAIN = r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,4}(?![\w.]))?"
_MATRIX = (
    r"\\(?:(?P<begin>begin\s*\{(?:[pbB]?matrix|smallmatrix|array)\}(?:\s*\{[lcr|\s]*\})?)|(?P<end>end\s*\{[^{}]*\}))"
)
_REST = r"(?P<letters>[A-Za-z]+)|(?P<blackboard>\\mathbb\s*\{?[A-Z]\}?)|\\(?P<macro>[A-Za-z]+|.)"
_SIGNS = r"(?P<sign><=|=<|>=|!=|==|\*\*|.)"


def _pattern(number: str) -> re.Pattern[str]:
    times = r"(?P<times>(?<=\d)\s?[xX]\s?(?=\d))"
    row = r"(?P<row>\\\\)"
    parts = (times, row, _MATRIX, f"(?P<space>{_SPACE})", f"(?P<text>{_TEXT})", f"(?P<number>{number})", _REST, _SIGNS)
    return re.compile("|".join(parts), re.VERBOSE | re.DOTALL)


_OUTSIDE = _pattern(f"{_GROUPED}|{_COMMAS}|{_PLAIN}")
_INSIDE = _pattern(f"{_GROUPED}|{_PLAIN}")  # (1,234) is a pair


class Token(NamedTuple):
    """Hold one token. The kinds are number, symbol, words, function, command and sign."""

    kind: str
    text: str
    is_spaced: bool = False  # a space is before it


def read_tokens(text: str) -> list[Token]:
    """Return the tokens of an answer."""
    text = _to_ascii(text).strip(" \n\t$").lstrip(",;:").rstrip(" .,;:$\n\\")
    if r"\begin" not in text:
        text = text.replace("\\\\", "\\")  # of data that was escaped twice; in a matrix it ends a row
    tokens: list[Token] = []
    _add_tokens(text, tokens)
    return tokens


def _add_tokens(text: str, tokens: list[Token]) -> None:
    depth = 0
    at = 0
    is_spaced = False
    while at < len(text):
        match = (_INSIDE if depth else _OUTSIDE).match(text, at)
        assert match is not None, "the last alternative takes any character"
        at = match.end()
        if match["space"]:
            is_spaced = True
            continue
        depth += (match[0] in {"(", "[", r"\{"}) - (match[0] in {")", "]", r"\}"})
        tokens += _tokens_of(match, tokens, is_spaced)
        is_spaced = False


def _tokens_of(match: re.Match[str], before: list[Token], is_spaced: bool) -> list[Token]:
    if match["number"]:
        digits = re.sub(r"[^\d.eE+-]", "", match["number"])
        return [Token("number" if len(digits) <= MAX_DIGITS else "sign", digits, is_spaced)]
    if match["text"]:
        return _of_text(match["inner"].strip(), before)
    if match["letters"]:
        return _of_letters(match["letters"], before, is_spaced)
    if match["macro"]:
        return [_of_macro(match["macro"], is_spaced)]
    if match["blackboard"]:
        letter = match["blackboard"].rstrip("}")[-1]
        return [Token("command", rf"\mathbb{{{letter}}}", is_spaced)]
    if match["times"]:
        return [Token("sign", "*")]
    for name, text in (("row", r"\\"), ("begin", r"\begin"), ("end", r"\end")):
        if match[name]:
            return [Token("sign", text)]
    sign = str(match["sign"])
    return [Token("sign", _SPELLINGS.get(sign, sign) if len(sign) > 1 else sign, is_spaced)]


def _of_text(inner: str, before: list[Token]) -> list[Token]:
    """Return the tokens of a text macro: words, unless it holds the name of a function, or no word at all."""
    is_word = any(character.isalpha() for character in inner) and inner not in {"e", "i", "d", "and", "or"}
    if is_word and not _FUNCTIONS.fullmatch(inner):
        return [Token("words", inner)]
    tokens = list(before)
    _add_tokens(inner, tokens)
    return tokens[len(before) :]


def _of_letters(letters: str, before: list[Token], is_spaced: bool) -> list[Token]:
    """Return a run of letters as a function, as a word, or as variables, each of one letter."""
    lower = letters.lower()
    is_function = _FUNCTIONS.fullmatch(letters) and lower not in UNITS
    if is_function or _TYPED_MACRO.fullmatch(letters) or lower in {"and", "or"}:
        return [_of_macro(lower, is_spaced)]
    last = before[-1] if before else Token("sign", "")
    is_unit = lower in UNITS and (len(letters) > 2 or last.kind == "number" or last.text in {"}", r"\pi", ")"})
    if len(letters) > 3 or lower in _SHORT_WORDS or (is_unit and len(letters) > 1) or last.kind == "words":
        return [Token("words", letters, is_spaced)]
    return [Token("symbol", letter, is_spaced and at == 0) for at, letter in enumerate(letters)]


def _of_macro(name: str, is_spaced: bool) -> Token:
    text = _SPELLINGS.get(name, "\\" + name if name.isalpha() else name)
    if _FUNCTIONS.fullmatch(name):
        return Token("function", text, is_spaced)
    is_sign = (
        not text.startswith("\\") or text in _RELATIONS or _SIGN_MACROS.fullmatch(name) or _UNREADABLE.fullmatch(name)
    )
    return Token("sign" if is_sign else "command", text, is_spaced)


def _to_ascii(text: str) -> str:
    """Replace symbols, digits of other scripts, raised and lowered digits; remove control and format characters."""
    if text.isascii() and text.isprintable():
        return text
    text = _RAISED.sub(lambda match: "^{" + unicodedata.normalize("NFKC", match[0]).replace("−", "-") + "}", text)
    text = _LOWERED.sub(lambda match: "_{" + unicodedata.normalize("NFKC", match[0]) + "}", text)
    text = _VULGAR_FRACTION.sub(_spell_fraction, text)
    text = unicodedata.normalize("NFKC", text.translate(_TABLE)).translate(_TABLE)
    return "".join(_to_ascii_character(character) for character in text)


def _spell_fraction(match: re.Match[str]) -> str:
    numerator, _, denominator = unicodedata.normalize("NFKC", match[0]).partition("⁄")
    return rf"\frac{{{numerator}}}{{{denominator}}}"


def _to_ascii_character(character: str) -> str:
    if character.isascii() and character.isprintable():
        return character
    if character.isspace():
        return " "
    digit = unicodedata.decimal(character, None)
    if digit is not None:
        return str(digit)
    is_invisible = unicodedata.category(character) in {"Cc", "Cf"}
    return "" if is_invisible else character


_UNIT_SPELLINGS = {
    "meter": "m meter meters metre metres",
    "centimeter": "cm centimeter centimeters centimetre centimetres",
    "millimeter": "mm millimeter millimeters",
    "kilometer": "km kilometer kilometers kilometre kilometres",
    "inch": "in inch inches",
    "foot": "ft foot feet",
    "yard": "yd yard yards",
    "mile": "mi mile miles",
    "second": "s sec secs second seconds",
    "minute": "min mins minute minutes",
    "hour": "h hr hrs hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "year years yr yrs",
    "gram": "g gram grams",
    "kilogram": "kg kilogram kilograms",
    "pound": "lb lbs pound pounds",
    "ounce": "oz ounce ounces",
    "liter": "l liter liters litre litres",
    "milliliter": "ml milliliter milliliters",
    "gallon": "gal gallon gallons",
    "dollar": "dollar dollars usd buck bucks",
    "cent": "cent cents",
    "degree": "degree degrees deg",
    "radian": "radian radians rad",
    "percent": "percent pct percentage",
    "mph": "mph",
    "unit": "unit units square cubic sq",
}
UNITS = {spelling: unit for unit, spellings in _UNIT_SPELLINGS.items() for spelling in spellings.split()}
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}


class UnitWords(NamedTuple):
    """Hold what the words behind a value say."""

    name: str  # of a unit of the table; else the words
    scale: int  # the power of ten that "million" stands for; 0: none


def read_unit(words: str) -> UnitWords:
    """Return the first unit of the table in the words, else the words."""
    parts = re.findall("[a-z]+", words.lower())
    known = [UNITS[part] for part in parts if part in UNITS]
    known.sort(key="unit".__eq__)  # of "square inches" it is the inch
    name = known[0] if known else " ".join(parts)
    return UnitWords(name, _SCALES.get(parts[0], 0) if parts else 0)


def may_differ(gold: str, answer: str) -> bool:
    """Tell whether an answer with unit `answer` can be right where the gold one has the unit `gold`."""
    if "unit" in (gold, answer):  # of any kind, or the square of one
        return True
    return gold not in _UNIT_SPELLINGS or answer not in _UNIT_SPELLINGS or gold == answer
