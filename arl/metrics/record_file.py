"""Read metrics.jsonl: one JSON object a line, of which the last one may be half written."""

import json
from pathlib import Path
from typing import Any

from arl.errors import DataError

Value = float | list[float | None] | None
Row = dict[str, Value]  # one line, as read

_DECODER = json.JSONDecoder(parse_int=float, parse_constant=lambda name: None)  # Python writes NaN


def read_records(path: Path) -> list[Row]:
    """Read the records of a file, without a last line that has no end; none if there is no file.

    Raises:
        DataError: it cannot be read, or a line holds no record.
    """
    if not path.exists():
        return []
    rows = []
    try:
        *lines, _ = path.read_bytes().split(b"\n")
        for line in lines:
            rows.append(decode_record(line))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read after {len(rows)} lines ({error})") from error
    return rows


def decode_record(line: bytes) -> Row:
    """Read one record.

    Raises:
        ValueError: the line holds none.
    """
    row: Row = _DECODER.decode(line.decode())
    return row


def step_of(row: Row) -> int:
    """Return the step of a record."""
    step: Any = row["step"]
    return int(step)
