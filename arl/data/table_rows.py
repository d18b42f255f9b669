"""Read the rows of jsonl and parquet files. Each row knows its place, because messages name it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from arl.data.jsonl import NotARowError, numbered_lines, read_object

MOST_NAMES = 1000  # columns of a row that messages choose from
LONGEST_INDEX = 9  # digits of a place in a list


class Row(Struct, frozen=True):
    """Hold one row of a file."""

    place: str  # problems.jsonl:3, or problems.parquet row 3, counted from 1
    values: dict[str, Any]  # column -> value; structs are dicts
    malformed: str = ""  # why it is no row of columns; empty: it is one


def read_rows(path: Path, field: str) -> Iterator[Row]:
    """Yield the rows of a jsonl file (one JSON object a line) or of a parquet file.

    A line that is not a JSON object is yielded as malformed.

    Args:
        path: the file; its suffix decides.
        field: how messages name it, as in "data.path".

    Raises:
        DataError: the file cannot be read at all.
    """
    if path.suffix == ".parquet":
        from arl.data.parquet_rows import parquet_rows  # and pyarrow

        for number, values in enumerate(parquet_rows(path, field), 1):
            yield Row(f"{path} row {number}", values)
        return
    for place, line in numbered_lines(path, field=field):
        yield _jsonl_row(place, line)


def _jsonl_row(place: str, line: str) -> Row:
    try:
        return Row(place, read_object(line))
    except NotARowError as error:
        return Row(place, {}, malformed=str(error))


def value_at(values: dict[str, Any], column: str) -> Any:
    """Return the value of a column, or of one inside it: `reward_model.ground_truth`, `choices.0`.

    Raises:
        KeyError: the row has no such column.
    """
    if column in values:
        return values[column]
    found: Any = values
    for part in column.split("."):
        if isinstance(found, list) and _is_index(part) and int(part) < len(found):
            found = found[int(part)]
        elif isinstance(found, dict) and part in found:
            found = found[part]
        else:
            raise KeyError(column)
    return found


def _is_index(part: str) -> bool:
    return part.isdecimal() and len(part) <= LONGEST_INDEX


def column_names(values: dict[str, Any]) -> list[str]:
    """List the columns of a row, at most MOST_NAMES, those inside structs as `outer.inner`."""
    names: list[str] = []
    left = [("", values)]
    while left and len(names) < MOST_NAMES:
        prefix, inner = left.pop(0)
        for name, value in inner.items():
            names.append(f"{prefix}{name}")
            if isinstance(value, dict):
                left.append((f"{prefix}{name}.", value))
    return names[:MOST_NAMES]
