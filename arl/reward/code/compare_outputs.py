"""Compare what a program has written with what it should, as judges of contests do."""

import itertools
from decimal import Decimal, InvalidOperation


def same_output(said: str, expected: str) -> bool:
    """Return whether two outputs are equal, line by line and word by word, without regard to white space at the ends.

    Numbers are equal as decimals, so 1.0 is 1.

    >>> same_output("3 \\n1.50\\n\\n", "3\\n1.5"), same_output("3 1", "3\\n1")
    (True, False)
    """
    lines = [line.split() for line in said.strip().splitlines()]
    others = [line.split() for line in expected.strip().splitlines()]
    if [len(line) for line in lines] != [len(line) for line in others]:
        return False
    pairs = zip(itertools.chain(*lines), itertools.chain(*others), strict=True)
    return all(word == other or _equal_numbers(word, other) for word, other in pairs)


def _equal_numbers(word: str, other: str) -> bool:
    try:
        return Decimal(word) == Decimal(other)
    except InvalidOperation:
        return False
