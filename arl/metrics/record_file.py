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
        DataError: a line holds no record.
    """
    if not path.exists():
        return []
    rows: list[Row] = []
    try:
        *lines, _ = path.read_bytes().split(b"\n")
        rows.extend(_DECODER.decode(line.decode()) for line in lines)
    except ValueError as error:
        raise DataError(f"{path}: cannot be read after {len(rows)} lines ({error})") from error
    return rows


def step_of(row: Row) -> int:
    """Return the step of a record."""
    step: Any = row["step"]
    return int(step)
