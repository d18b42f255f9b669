r"""Read units, and tell whether two units contradict each other.

A unit is not asked for: "5" is right where "5 cm" is gold, and "5 apples" where "5" is. Only two units of the table
that differ make an answer wrong: 5 minutes are not 5 hours.
"""

import re
from typing import NamedTuple

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
UNITS = {spelling: unit for unit, spellings in _SPELLINGS.items() for spelling in spellings.split()}
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}


class Unit(NamedTuple):
    """Hold what the words behind a value say."""

    name: str  # of a unit of the table; else the words
    scale: int  # the power of ten that "million" stands for; 0: none


def read_unit(words: str) -> Unit:
    """Return the first unit of the table in the words, else the words."""
    parts = re.findall("[a-z]+", words.lower())
    known = [UNITS[part] for part in parts if part in UNITS]
    known.sort(key="unit".__eq__)  # of "square inches" it is the inch
    name = known[0] if known else " ".join(parts)
    return Unit(name, _SCALES.get(parts[0], 0) if parts else 0)


def may_differ(gold: str, answer: str) -> bool:
    """Tell whether an answer with unit `answer` can be right where the gold one has the unit `gold`."""
    if "unit" in (gold, answer):  # of any kind, or the square of one
        return True
    return gold not in _SPELLINGS or answer not in _SPELLINGS or gold == answer
