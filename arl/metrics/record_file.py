"""Read metrics.jsonl of a run that may live, be dead, or be somebody else's: what is no record is counted, not used.

{"step": 1, "loss": 0.3, …} ─► Row         a line that holds none ─► its number         a last line without end ─► torn
"""

import json
from pathlib import Path
from typing import Any, TypeGuard

import msgspec
from msgspec import Struct

from arl.errors import DataError
from arl.files import decode_json, read_regular
from arl.types import MOST_COUNT

Value = float | list[float | None] | None
Row = dict[str, Value]  # one line, as read; every number is finite, and at most LARGEST
MOST_BYTES = 1 << 30
LARGEST = 1e100  # of a number: no run measures more, and sums and products of these are finite
MOST_ENTRIES = 1 << 14  # of a list, which has one for each age
STEPS = ("step", "policy_version")


class Records(Struct, frozen=True):
    """Hold the records of a file, and what was left out."""

    rows: list[Row]
    damaged: list[int]  # numbers of lines that hold no record
    is_torn: bool  # the last line is half written


def read_records(path: Path) -> Records:
    """Read the records of a file; none if there is no file.

    Raises:
        DataError: it cannot be read at all.
    """
    try:
        content = read_regular(path, MOST_BYTES)
    except FileNotFoundError:
        return Records([], [], is_torn=False)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    *lines, torn = content.split(b"\n")
    rows = []
    damaged = []
    for number, line in enumerate(lines, start=1):
        row = decode_record(line)
        if row is None:
            damaged.append(number)
        else:
            rows.append(row)
    return Records(rows, damaged, is_torn=bool(torn))


def decode_record(line: bytes) -> Row | None:
    """Read one record; None if the line holds none. Python writes NaN, which JSON does not know: it is absent."""
    try:
        row = _decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    if "step" not in row or not all(is_count(row[name]) for name in STEPS if name in row):
        return None
    if any(isinstance(value, list) and len(value) > MOST_ENTRIES for value in row.values()):
        return None
    return {name: _finite(value) for name, value in row.items()}


def _decode(line: bytes) -> Row:
    """Decode a record, by Python's own decoder where the fast one fails and a name or number may be Python's own.

    Raises:
        msgspec.DecodeError, ValueError, RecursionError: it is none.
    """
    row: Row
    try:
        row = decode_json(line, Row)
    except msgspec.DecodeError:
        if b"NaN" not in line and b"Infinity" not in line:
            raise
        found = json.loads(line, parse_constant=lambda name: None, parse_int=float)
        row = decode_json(msgspec.json.encode(found), Row)  # it writes an infinite number as null
    return row


def step_of(row: Row) -> int:
    """Return the step of a record."""
    step: Any = row["step"]
    return int(step)


def is_count(value: Value) -> TypeGuard[float]:
    """Return whether a value is a whole number that a run may count to."""
    return isinstance(value, float) and 0 <= value <= MOST_COUNT and value.is_integer()


def _finite(value: Value) -> Value:
    """Return None in the place of a number that is too large: one too large for a float is read as infinite."""
    if isinstance(value, list):
        return [None if entry is None or abs(entry) > LARGEST else entry for entry in value]
    return None if value is None or abs(value) > LARGEST else value
