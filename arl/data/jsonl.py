"""Read files that hold one JSON object on each line.

JSON leaves open what a reader does with duplicate keys, large integers, NaN and deep nesting. A row goes on to reward
workers (msgpack) and into trajectory files (Parquet), so here a line that those could not carry unchanged is no row.
"""

import itertools
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from arl.errors import DataError

LONGEST_LINE = 16_000_000  # bytes
DEEPEST = 64  # lists and objects inside each other
LEAST_INTEGER = -(2**63)
LARGEST_INTEGER = 2**64 - 1
SAFE_DIGITS = 18  # an integer of so many characters fits in any case
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # some editors begin a file with it
GZIP = b"\x1f\x8b"
_MAY_BE_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class NotARowError(ValueError):
    """Report that a line is no JSON object that can be used. The message follows the place, as in "is a list"."""


def numbered_lines(path: Path, *, field: str) -> Iterator[tuple[str, str]]:
    r"""Yield the place, as in `problems.jsonl:3`, and the text of each line that is not blank.

    A line ends at \n, also behind \r, and nowhere else: JSON allows U+2028 and U+0085 inside a string.

    Args:
        path: the file.
        field: how messages name it, as in "data.path".

    Raises:
        DataError: the file cannot be read as UTF-8, or has a line of more than LONGEST_LINE bytes.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(_lines(file), 1):
                if len(line) > LONGEST_LINE:
                    raise DataError(f"{path}:{number}: is longer than {LONGEST_LINE:,} bytes; one line is one row")
                if line.strip():
                    yield f"{path}:{number}", line.decode()
    except UnicodeDecodeError as error:
        is_gzip = isinstance(error.object, bytes) and error.object.startswith(GZIP)
        what = "it is compressed: unpack it" if is_gzip else f"line {number}: {error}"
        raise DataError(
            f"{field} {path}: cannot be read as text ({what}); give one JSON object a line, in UTF-8"
        ) from error
    except OSError as error:
        raise DataError(f"{field} {path}: cannot be read ({error.strerror})") from error


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines, and of one that is too long its beginning."""
    first = file.readline(LONGEST_LINE + 1).removeprefix(BYTE_ORDER_MARK)
    rest = iter(lambda: file.readline(LONGEST_LINE + 1), b"")
    return itertools.chain([first], rest)


def read_object(line: str) -> dict[str, Any]:
    """Return the JSON object of a line.

    >>> read_object('{"prompt": "2 + 2 =", "answer": 4}')
    {'prompt': '2 + 2 =', 'answer': 4}

    Raises:
        NotARowError: it is no JSON object, or holds what the docstring of this module excludes.
    """
    try:
        value = _decoder.decode(line)
    except json.JSONDecodeError as error:
        raise NotARowError(f"not JSON ({error}), and each line must be one JSON object") from error
    except RecursionError as error:
        raise NotARowError(TOO_DEEP) from error
    if not isinstance(value, dict):
        raise NotARowError(f"is {type(value).__name__}, and must be one JSON object")
    if _MAY_BE_SURROGATE.search(line) and not _is_unicode(value):
        raise NotARowError("has half of a surrogate pair (\\ud800 … \\udfff), which is no character")
    return value


TOO_DEEP = "not JSON, or nested too deeply"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise NotARowError(
                    f"has the key {name[:60]!r} twice in one object, so that it is not clear which counts"
                )
            seen.add(name)
    return value


def _integer(text: str) -> int:
    if len(text) > SAFE_DIGITS:
        number = int(text) if len(text) <= len(str(LEAST_INTEGER)) else math.inf
        if not LEAST_INTEGER <= number <= LARGEST_INTEGER:
            raise NotARowError(
                f"has the integer {_cut(text)}, which takes more than 64 bits; write it as text, in quotes"
            )
    return int(text)


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise NotARowError(f"has the number {_cut(text)}, which is too large; write it as text, in quotes")
    return number


def _constant(name: str) -> NoReturn:
    raise NotARowError(f"not JSON ({name} is no number in JSON; write null, or text in quotes)")


def _cut(text: str) -> str:
    return text if len(text) <= 30 else f"{text[:27]}…"


_decoder = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_integer,
    parse_float=_float,
    parse_constant=_constant,
)


def _is_unicode(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
