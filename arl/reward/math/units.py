r"""Take the unit off an answer, and tell whether two units contradict each other.

    "5\\text{cm}" ─► "5", "cm"        "15\\text{cm}^2" ─► "15", "cm"        "2k" ─► "2k", ""

A unit is not asked for: "5" is right where "5 cm" is gold, and "5 apples" where "5" is. Only two units of the table
that differ make an answer wrong: 5 minutes are not 5 hours.
"""

import re

_SPELLINGS = {
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
_UNITS = {spelling: unit for unit, spellings in _SPELLINGS.items() for spelling in spellings.split()}
_AMOUNT = r"[-+]?(?:\d|\.\d|\\frac|\\sqrt|\\pi|\().*"
_IN_TEXT = re.compile(rf"({_AMOUNT}?)\\text\{{([^{{}}]*)\}}(?:\^\{{?\d\}}?|/\\text\{{[^{{}}]*\}})*")
_BARE = re.compile(r"([-+]?[\d.,/ ]*\d%?)( ?)([A-Za-z][A-Za-z.'/ -]*)(?:\^\{?\d\}?)?")
_FORMULA = r"[-+]?[\d.]*\\(?:(?:frac|sqrt).*\}(?:\\pi)?|pi)"
_AFTER_FORMULA = re.compile(rf"({_FORMULA}) ?([A-Za-z]{{2,}}(?: [A-Za-z]+)*)(?:\^\{{?\d\}}?)?")
_MULTIPLES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_LEADING_TEXT = re.compile(r"\\text\{(?!\(?[A-Z][).:]*\})[^{}]*\}:?(?=[-+\d.(\\])")
_LEADING_WORDS = re.compile(
    r"(?:about|approximately|exactly|only|a total of|usd|rs\.?|us) ?(?=[-+\d.\\])", re.IGNORECASE
)
_NO_UNITS = {"and", "or", "not", "to", "is", "mod", "choose", "if", "where", "for"}
_NO_UNITS |= {"sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "arcsin", "arccos", "arctan"}
_LONG_WORD = 5  # letters that are no product of variables, though no space is before them


def split_unit(text: str) -> tuple[str, str]:
    """Return a cleaned answer without its unit, and the unit ("" if there is none).

    A percent sign stays. Words without a text macro are a unit only after a plain number, and single letters only if
    they are usual units. Such a letter is marked, as in "?m", because `2h` may as well be an expression.
    """
    stripped = _LEADING_WORDS.sub("", _LEADING_TEXT.sub("", text, count=1), count=1)
    if match := _IN_TEXT.fullmatch(stripped):
        return _scaled(match[1], match[2]), _unit(match[2])
    match = _AFTER_FORMULA.fullmatch(stripped)
    if match and match[2].lower().split()[0] in _UNITS:
        return _scaled(match[1], match[2]), _unit(match[2])
    match = _BARE.fullmatch(stripped)
    if match is None or not _is_unit(match[3].lower(), after_space=bool(match[2])):
        return stripped, ""
    unit = f"?{match[3]}" if len(match[3]) == 1 else _unit(match[3])
    return _scaled(match[1], match[3]), unit


def _is_unit(words: str, after_space: bool) -> bool:
    first, *others = re.split("[^a-z]+", words)
    if _NO_UNITS & {first, *others}:
        return False
    return first in _UNITS or len(first) >= (2 if after_space else _LONG_WORD)


def _scaled(amount: str, words: str) -> str:
    """Write "percent" as its sign, and "million" as a power of ten."""
    amount = amount.strip()
    multiple = _MULTIPLES.get(words.lower().split()[0]) if words.strip() else None
    if multiple is not None:
        return rf"{amount}\cdot10^{multiple}" if multiple < 10 else rf"{amount}\cdot10^{{{multiple}}}"
    return amount + "%" if _unit(words) == "percent" and not amount.endswith("%") else amount


def _unit(words: str) -> str:
    """Return the name of the first unit of the table in the words, else the words."""
    parts = re.findall("[a-z]+", words.lower())
    known = [_UNITS[part] for part in parts if part in _UNITS]
    known.sort(key="unit".__eq__)  # of "square inches" it is the inch
    return known[0] if known else " ".join(parts)


def may_differ(gold: str, answer: str) -> bool:
    """Tell whether an answer with unit `answer` can be right where the gold one has the unit `gold`."""
    if gold.startswith("?"):
        return gold == answer
    given = _UNITS.get(answer[1:].lower(), answer) if answer.startswith("?") else answer
    if "unit" in (gold, given):  # of any kind, or the square of one
        return True
    return gold not in _SPELLINGS or given not in _SPELLINGS or gold == given
