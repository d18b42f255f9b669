r"""Write an answer without its decoration, so that equal answers in usual forms become equal strings.

    "$\\dfrac12\\,$."  ─► unicode ─► delimiters and spaces ─► macros ─► braces ─► "\\frac{1}{2}"

Nothing here computes: numbers are read by exact_numbers, lists and intervals by answer_forms.
"""

import re
import unicodedata

# Symbols that models write in place of a command.
_SYMBOLS = {
    "×": r"\cdot ",
    "·": r"\cdot ",
    "⋅": r"\cdot ",
    "∗": r"\cdot ",
    "÷": "/",
    "⁄": "/",
    "∕": "/",
    "π": r"\pi ",
    "√": r"\sqrt ",
    "∞": r"\infty ",
    "≤": r"\leq ",
    "⩽": r"\leq ",
    "≥": r"\geq ",
    "⩾": r"\geq ",
    "≠": r"\neq ",
    "≈": r"\approx ",
    "±": r"\pm ",
    "∓": r"\mp ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∈": r"\in ",
    "∅": r"\emptyset ",
    "°": "",
    "ℝ": r"\mathbb{R}",
    "θ": r"\theta ",
    "α": r"\alpha ",
    "β": r"\beta ",
    "γ": r"\gamma ",
    "λ": r"\lambda ",
    "μ": r"\mu ",
    "ω": r"\omega ",
    "φ": r"\phi ",
    "’": "'",
    "€": "",
    "£": "",
    "¥": "",
    "₹": "",
    "¢": r"\text{cents}",
}
_DASHES = "\N{HYPHEN}\N{NON-BREAKING HYPHEN}\N{FIGURE DASH}\N{EN DASH}\N{EM DASH}\N{MINUS SIGN}\N{SMALL HYPHEN-MINUS}"
_TABLE = str.maketrans(_SYMBOLS | dict.fromkeys(_DASHES, "-"))
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_LOWERED = re.compile("[₀₁₂₃₄₅₆₇₈₉]+")
_VULGAR_FRACTION = re.compile("[¼-¾⅐-⅞]")

_TEXT_MACRO = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|texttt|textnormal|mbox|hbox|emph|mathrm|operatorname\*?)\s*\{([^{}]*)\}"
)
_STYLE_MACRO = re.compile(r"\\(?:mathbf|mathit|mathsf|boldsymbol|bm|underline)\s*\{([^{}]*)\}")
_DOUBLED_BACKSLASH = re.compile(r"\\\\(?=[A-Za-z])")  # of data that was escaped twice; in a matrix it ends a row
_FUNCTIONS = "(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|ln|log|lg|exp"
_NAMED_FUNCTION = re.compile(rf"{_FUNCTIONS}|det|gcd|lcm|max|min")

# Each pair is replaced in this order.
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"\s+", " "),  # first, because patterns with spaces at both ends are slow on long runs
        (r"\\(?:left|right)\s*\.", ""),
        (r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![A-Za-z])", ""),
        (r"(?<=\d) ?(?:\{ ?, ?\}|,\s*\\!|\\,|\\!)\s*(?=\d{3})", ""),  # separators of thousands that cannot be a list
        (r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})|\\degree(?![A-Za-z])", ""),
        (r"(?<!\\)\\[()\[\]]|\\?\$", ""),  # math delimiters and dollar signs
        (r"\\%", "%"),
        (r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|boldmath|rm|bf|it)(?![A-Za-z])", ""),
        (r"\\(?:h|v)space\*?\s*\{[^{}]*\}|\\phantom\s*\{[^{}]*\}", " "),
        (r"\\(?:quad|qquad|thinspace|enspace|medspace)(?![A-Za-z])", " "),
        (r"(?<!\\)\\[,;:!> ]|~", " "),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\(?:lbrace|lbrack)(?![A-Za-z])", r"\\{"),
        (r"\\(?:rbrace|rbrack)(?![A-Za-z])", r"\\}"),
        (r"\\(?:langle)(?![A-Za-z])", "("),
        (r"\\(?:rangle)(?![A-Za-z])", ")"),
        (r"\\[lr]?[vV]ert(?![A-Za-z])|\\\|", "|"),
        (r"\\leqslant(?![A-Za-z])|\\le(?![A-Za-z])|<=|=<", r"\\leq "),
        (r"\\geqslant(?![A-Za-z])|\\ge(?![A-Za-z])|>=", r"\\geq "),
        (r"\\ne(?![A-Za-z])|!=|/=", r"\\neq "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\infin(?![A-Za-z])|(?<![A-Za-z\\])(?:infinity|inf|oo)(?![A-Za-z])", r"\\infty "),
        (r"(?:(?<=[,(\[])|^)\s*\+\s*(?=\\infty)", ""),
        (r"\\(?:varnothing)(?![A-Za-z])|\\\{\s*\\\}", r"\\emptyset "),
        (r"\\(?:times|ast)(?![A-Za-z])|(?<!\*)\*(?!\*)", r"\\cdot "),
        (r"(?<=\d) ?[xX] ?(?=\d)", r"\\cdot "),
        (r"\*\*", "^"),
        (r"\\div(?![A-Za-z])", "/"),
        (r"\\colon(?![A-Za-z])", ":"),
        (r"\\(?:approxeq|simeq)(?![A-Za-z])", r"\\approx "),
        (r"(?<![A-Za-z\\])pi(?![A-Za-z])", r"\\pi "),
        (r"(?<![A-Za-z\\])sqrt(?![A-Za-z])", r"\\sqrt "),
        (rf"(?<![A-Za-z\\])({_FUNCTIONS})(?=[ ({{\d\\^_])", r"\\\1"),
        (r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\\sqrt\s*(\d+|[A-Za-z](?![A-Za-z]))", r"\\sqrt{\1}"),
        (r"\^\s*\(([^()]*)\)", r"^{\1}"),
        (r"\\frac\s*(\\[a-z]+)\s*(?=\d|\{)", r"\\frac{\1}"),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\d|[A-Za-z])\s*(?=\{)", r"\\frac{\1}"),
        (r"\\frac\s*(\{[^{}]*\})\s*(\d|[A-Za-z])", r"\\frac\1{\2}"),
        (r"\s*([-=+*/^_(){}\[\];:<>|&!%'])\s*", r"\1"),
        (r"\s*,(?! \d{3}(?!\d)) ?", ","),  # "32, 349" lists two numbers, "32,349" is one
        (r"\\log_\{?e\}?(?![A-Za-z])", r"\\ln"),
        (r"([_^])\{(\w)\}", r"\1\2"),
        (r"\s+", " "),
        (r" (?=\\)", ""),
        (r"(?<=\d) (?=[A-Za-z](?![A-Za-z]))|(?<=[A-Za-z])(?<!_[A-Za-z]) (?=\d)", ""),
        (r"(?<![A-Za-z])(\\[A-Za-z]+) (?![A-Za-z])", r"\1"),
    ]
]


def clean(answer: str) -> str:
    r"""Return the answer as LaTeX in one normal spelling, without what does not change its meaning.

    >>> clean("$\\left( 3,\\, \\dfrac{\\pi}{2} \\right).$")
    '(3,\\frac{\\pi}{2})'

    Left out are: math delimiters, spaces, sizes and fonts, currency and degree signs, a period at the end. Words stay:
    those of a text macro as `\text{…}`.
    """
    text = _to_ascii(answer)
    text = _STYLE_MACRO.sub(r"{\1}", text)
    text = _TEXT_MACRO.sub(_one_text_macro, text)
    if r"\begin" not in text:
        text = _DOUBLED_BACKSLASH.sub(r"\\", text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return _trim(text)


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


def _one_text_macro(match: re.Match[str]) -> str:
    r"""Write every macro for text as \text. A name of a function or a lone symbol is no text."""
    inner = match[1].strip()
    if not any(character.isalpha() for character in inner):
        return match[1]
    if _NAMED_FUNCTION.fullmatch(inner):
        return rf"\{inner} "
    if inner in {"and", "or"}:
        return ","
    is_math_letter = len(inner) == 1 and match[0].startswith((r"\mathrm", r"\operatorname")) and inner in "edi"
    return inner if is_math_letter else rf"\text{{{inner}}}"


def _trim(text: str) -> str:
    """Remove what is around an answer: spaces, periods, commas, and line breaks of LaTeX."""
    before = None
    while before != text:
        before = text
        text = text.lstrip(" ,;:").rstrip(" .,;:").removesuffix("\\\\").removeprefix("\\\\")
    return text


def words_of(text: str) -> str | None:
    r"""Return the words of an answer that has nothing else, in lower case and without an article; else None.

    >>> words_of(r"\text{The Ellipse}")
    'ellipse'
    """
    bare = text.replace(r"\text{", " ").replace("}", " ") if r"\text{" in text else text
    words = re.sub(r"[.,!?'\"`*]", "", bare).lower().split()
    if not words or not all(re.fullmatch(r"[a-z]+(?:-[a-z]+)*", word) for word in words):
        return None
    if len(words) > 1 and words[0] in {"a", "an", "the"}:
        words = words[1:]
    return " ".join(words)
