"""Compare what a program has written with what it should, as judges of contests do."""

import itertools
import math
from decimal import Decimal, InvalidOperation


def same_output(said: str, expected: str, tolerance: float | None = None) -> bool:
    """Return whether two outputs are equal, line by line and word by word, without regard to white space at the ends.

    Numbers are equal as decimals, so 1.0 is 1; with a tolerance, also if they differ by less, relative or absolute.

    >>> same_output("3 \\n1.50\\n\\n", "3\\n1.5"), same_output("3 1", "3\\n1"), same_output("0.33", "0.33333", 1e-2)
    (True, False, True)
    """
    lines = [line.split() for line in said.strip().splitlines()]
    others = [line.split() for line in expected.strip().splitlines()]
    if [len(line) for line in lines] != [len(line) for line in others]:
        return False
    pairs = zip(itertools.chain(*lines), itertools.chain(*others), strict=True)
    return all(word == other or _equal_numbers(word, other, tolerance) for word, other in pairs)


def _equal_numbers(word: str, other: str, tolerance: float | None) -> bool:
    try:
        number, wanted = Decimal(word), Decimal(other)
        if tolerance is None:
            return number == wanted
        return math.isclose(number, wanted, rel_tol=tolerance, abs_tol=tolerance)
    except (InvalidOperation, ValueError, OverflowError):
        return False
