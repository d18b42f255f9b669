r"""Cut an answer into tokens: numbers, letters, words, macros and signs, in any script and spacing. Know units.

    "$\left(3,\tfrac{π}2\right).$"   ─►   (  3  ,  \frac  {  \pi  }  2  )

Left out are math delimiters, spaces, sizes, fonts, currency signs, and punctuation at the ends. A matrix becomes a
tuple of its rows, each of which is a tuple of its cells.
"""

import re
import unicodedata
from typing import NamedTuple

MAX_DIGITS = 2000  # of a number; Python converts up to 4,300

_SAME = r"""
    \frac dfrac tfrac cfrac ; \binom dbinom tbinom ; \log lg ; \root √ ; \emptyset varnothing ∅ ;
    \infty infin infinity inf oo ∞ ; * cdot times ast bullet × · ⋅ ∗ ; / div ÷ ⁄ ∕ ; - ‐ ‑ ‒ – — − ; ^ ** ; ' ’ ;
    \leq leq le leqslant <= =< ≤ ⩽ ; \geq geq ge geqslant >= ≥ ⩾ ; \neq neq ne != ≠ ; \approx approx approxeq simeq ≈ ;
    = equiv coloneqq == ; < lt ; > gt ; , lor land and or & ; : colon ; \pm ± ; \mp ∓ ; \cup ∪ ; \cap ∩ ; \in ∈ ;
    | lvert rvert vert mid lVert rVert Vert | ; [ lbrack ; ] rbrack ; ( langle ; ) rangle ; \{ lbrace { ; \} rbrace } ;
    \pi π ; \theta θ ; \alpha α ; \beta β ; \gamma γ ; \lambda λ ; \mu μ ; \omega ω ; \phi φ
"""
_SPELLINGS = {  # of one macro or sign, which comes first in its group
    spelling: group.split()[0] for group in _SAME.split(" ;") for spelling in group.split()[1:]
}
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"
_SCRIPTS = re.compile(f"[{_RAISED}]+|[₀₁₂₃₄₅₆₇₈₉]+|[¼-¾⅐-⅞]")  # and vulgar fractions

_FUNCTIONS = re.compile(r"(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|ln|log|lg|exp|det|gcd|lcm|max|min")
_WORDS = re.compile(  # what \text holds
    rf"(?!\s*(?:\d|(?:[eid]|and|or|{_FUNCTIONS.pattern})\s*$)).*[^\W\d_]",
    re.DOTALL,
)
_TYPED_MACROS = re.compile(r"pi|sqrt|theta|alpha|beta|gamma|lambda|infty|infin(?:ity)?|inf|oo|and|or")
# Macros that stand for no value: signs of the grammar, and what it does not know.
_SIGN_MACROS = re.compile(
    r"[^A-Za-z]|in|cup|pm|mp|degree|leq|geq|neq|approx|sum|prod|i*o*int|lim|[bp]?mod|[lc]?dots|to|cap|setminus|over|choose"
)
# Short words of the letters that variables have; others are found where they are compared.
_SHORT_WORDS = "all and ann any both day mad man max may no none not now on only up"
_NUMBER_WORDS = "zero one two three four five six seven eight nine ten eleven twelve"
NUMBERS = {word: value for value, word in enumerate(_NUMBER_WORDS.split())}

_UNIT_SPELLINGS = """
    meter m metre metres ; centimeter cm centimetre centimetres ; millimeter mm ; kilometer km kilometre kilometres ;
    inch in inches ; foot ft feet ; yard yd ; mile mi ; second s sec secs ; minute min mins ; hour h hr hrs ; day ;
    week ; month ; year yr yrs ; gram g ; kilogram kg ; pound lb lbs ; ounce oz ; liter l litre litres ; milliliter ml ;
    gallon gal ; celsius ; fahrenheit ;
    dollar usd buck bucks ; cent ; degree deg ; radian rad ; percent pct percentage ; mph ; unit square cubic sq
"""
UNITS = {
    spelling: group.split()[0]
    for group in _UNIT_SPELLINGS.split(";")
    for spelling in (*group.split(), group.split()[0] + "s")
}
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}

_TOKEN = re.compile(
    r"""
    (?P<times> (?<=\d)\s?[xX]\s?(?=\d) )
  | (?P<degree> (?: \^\s*(?:\{\s*(?:\\circ|\\degree|°|o|\\text\s*\{\s*o\s*\})\s*\}|\\circ|o(?![A-Za-z])) | °
        | \\degree(?![A-Za-z]) | (?<=\d)o(?!\w) | (?<=[\d}])\s*(?:\\text\s*\{\s*degrees?\s*\}|deg(?:rees?)?(?!\w)) )
        (?:\s*(?P<scale>\\(?:text|mathrm)\s*\{\s*[CF]\s*\}|[CF](?![A-Za-z])|[Cc]elsius|[Ff]ahrenheit))? )
  | (?P<row> \\\\(?!\s*\\end) )
  | (?P<begin> \\begin\s*\{(?:[pbB]?matrix|smallmatrix|array)\}(?:\s*\{[lcr|\s]*\})? )
  | (?P<end> \\end\s*\{[^{}]*\} )
  | (?P<space> \s+ | ~ | \\[\\,;:!>\ ()\[\]$] | [$€£¥₹] | \\(?:left|right|middle|[bB]igg?[lrm]?)(?![A-Za-z])\s*\.?
      | \\(?:quad|qquad|thinspace|enspace|medspace|displaystyle|textstyle|scriptstyle|limits|nolimits|boldmath|rm|bf
            |it|boxed|fbox|mathbb|mathbf|mathit|mathsf|mathcal|boldsymbol|bm|underline|hline)(?![A-Za-z])
      | \\(?:[hv]space\*?|phantom|color|textcolor)\s*\{[^{}]*\} )
  | \\(?:text(?:bf|it|rm|sf|tt|normal)?|mbox|hbox|emph|mathrm|operatorname\*?)\s*\{(?P<text> [^{}]* )\}
  | (?P<thousands> [1-9]\d{0,2}(?:,\d{3})+(?!,?\d)(?:\.\d+)? | \d{1,3}(?:[ ]\d{3})+(?!\d)(?![ ]?[\d/])(?:\.\d+)? )
  | (?P<clock> \d{1,2}\s?:\s?\d\d(?!\d) )
  | (?P<period> \d{0,99}\.\d{0,99}\\(?:overline|bar|dot)\s*\{?\s*\d{1,99}\s*\}? )
  | (?P<number> \d{1,3}(?:\s?(?:\{\s?,\s?\}|,?\s?\\[!,])\s*\d{3})+(?!\d)(?:\.\d+)?
      | (?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,4}(?![\w.]))? )
  | (?P<letters> [A-Za-z]+ )
  | \\(?P<macro> [A-Za-z]+ | . )
  | (?P<sign> <= | =< | >= | != | == | \*\* | . )
    """,
    re.VERBOSE | re.DOTALL,
)
_SIGNS = {"times": "*", "begin": "( (", "row": ") , (", "end": ") )"}


class Token(NamedTuple):
    """Hold one token. The kinds are number, symbol, words, function and sign."""

    kind: str
    text: str


def read_tokens(text: str) -> list[Token]:
    """Return the tokens of an answer."""
    text = _to_ascii(text).strip(' \n\t$*`"').lstrip(",;:").rstrip(" .,;:$\n\\")
    if r"\begin" not in text:
        text = text.replace("\\\\", "\\")  # of data that was escaped twice; in a matrix it ends a row
    tokens: list[Token] = []
    _add_tokens(text, tokens)
    return tokens


def _add_tokens(text: str, tokens: list[Token]) -> None:
    depth = 0
    at = 0
    while match := _TOKEN.match(text, at):
        at = match.end()
        kind = str(match.lastgroup)
        found = match[kind]
        depth += (match[0] in {"(", "[", r"\{"}) - (match[0] in {")", "]", r"\}"})
        if kind == "thousands" and depth:  # (1,234) is a pair
            found = found[: found.index("," if "," in found else " ")]
            at = match.start() + len(found)
        match kind:
            case "number" | "thousands":
                digits = re.sub(r"[^\d.eE+-]", "", found)
                tokens.append(Token("number" if len(digits) <= MAX_DIGITS else "sign", digits))
            case "period":
                tokens.append(Token("number", _fraction(*re.findall(r"[\d.]+", found))))
            case "clock":
                tokens.append(Token("symbol", found.replace(" ", "")))
            case "degree":
                scale = "celsius" if re.search("[Cc]", match["scale"] or "") else "fahrenheit"
                tokens.append(Token("words", scale) if match["scale"] else Token("sign", r"\degree"))
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
            case "times" | "begin" | "row" | "end":
                tokens += [Token("sign", sign) for sign in _SIGNS[kind].split()]


def _fraction(start: str, period: str) -> str:
    r"""Return 0.1\overline{6}, which is 0.1666…, as the fraction (16 − 1) / 90."""
    whole, _, places = start.partition(".")
    nines = (10 ** len(period) - 1) * 10 ** len(places)
    return f"{int(whole + places + period) - int(whole + places or 0)}/{nines}"


def _add_letters(letters: str, tokens: list[Token]) -> None:
    """Add a run of letters as a function, as a word, or as variables, each of one letter."""
    lower = letters.lower()
    last = tokens[-1] if tokens else Token("sign", "")
    is_behind_value = last.kind == "number" or last.text in {"}", r"\pi", ")"}
    is_unit = lower in UNITS and (len(letters) > 2 or (len(letters) == 2 and is_behind_value))
    is_function = _FUNCTIONS.fullmatch(letters) and lower not in UNITS
    if is_function or _TYPED_MACROS.fullmatch(lower):
        tokens.append(_macro("√" if lower == "sqrt" else lower))
    elif len(letters) > 3 or lower in {*_SHORT_WORDS.split(), *NUMBERS} or is_unit or last.kind == "words":
        tokens.append(Token("words", letters))
    else:
        tokens += [Token("symbol", letter) for letter in letters]


def _macro(name: str) -> Token:
    text = _SPELLINGS.get(name, "\\" + name if name.isalpha() else name)
    if _FUNCTIONS.fullmatch(name):
        return Token("function", text)
    is_sign = not text[1:].isalpha() or _SIGN_MACROS.fullmatch(text[1:])
    return Token("sign" if is_sign else "symbol", text)


def _to_ascii(text: str) -> str:
    """Spell raised and lowered digits, and digits of other scripts; remove control and format characters."""
    text = _SCRIPTS.sub(_spell_script, text.replace("¢", r"\text{cents}"))
    return "".join(map(_to_ascii_character, unicodedata.normalize("NFKC", text)))


def _spell_script(match: re.Match[str]) -> str:
    plain = unicodedata.normalize("NFKC", match[0])
    if "⁄" in plain:
        return rf"\frac{{{plain.replace('⁄', '}{')}}}"
    return ("^" if match[0][0] in _RAISED else "_") + f"{{{plain}}}"


def _to_ascii_character(character: str) -> str:
    if character.isspace():
        return " "
    is_invisible = unicodedata.category(character) in {"Cc", "Cf"}
    return "" if is_invisible else str(unicodedata.decimal(character, character))


def read_unit(words: str) -> tuple[str, int]:
    """Return the first unit of the table in the words, else the words; and the power of ten of "million", or 0."""
    parts = re.findall("[a-z]+", words.lower())
    known = [UNITS[part] for part in parts if part in UNITS]
    known.sort(key="unit".__eq__)  # of "square inches" it is the inch
    scale = _SCALES.get(parts[0], 0) if parts else 0
    return known[0] if known else " ".join(parts), scale
