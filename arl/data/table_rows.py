"""Read the rows of jsonl and parquet files. Each row knows its place, because messages name it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from arl.data.jsonl import numbered_lines
from arl.errors import DataError

BATCH = 1024  # rows of a parquet file that are in memory as Python objects at once


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
        yield from _parquet_rows(path, field)
        return
    for place, line in numbered_lines(path, field=field):
        yield _jsonl_row(place, line)


def _jsonl_row(place: str, line: str) -> Row:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, and nesting without end
        return Row(place, {}, malformed=f"not JSON ({error}), and each line must be one JSON object")
    if not isinstance(value, dict):
        return Row(place, {}, malformed=f"is {type(value).__name__}, and must be one JSON object")
    if "\\ud" in line.lower() and not _is_unicode(value):
        return Row(place, {}, malformed="has half of a surrogate pair (\\ud800 … \\udfff), which is no character")
    return Row(place, value)


def _is_unicode(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _parquet_rows(path: Path, field: str) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(BATCH):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(f"{path} row {number}", values)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{field} {path}: cannot be read as parquet ({error}); download or write it again") from error


def value_at(values: dict[str, Any], column: str) -> Any:
    """Return the value of a column, or of one inside it: `reward_model.ground_truth`, `choices.0`.

    Raises:
        KeyError: the row has no such column.
    """
    if column in values:
        return values[column]
    found: Any = values
    for part in column.split("."):
        if isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        elif isinstance(found, dict) and part in found:
            found = found[part]
        else:
            raise KeyError(column)
    return found


def column_names(values: dict[str, Any], prefix: str = "") -> list[str]:
    """List the columns of a row, those inside structs as `outer.inner`."""
    names = []
    for name, value in values.items():
        names.append(f"{prefix}{name}")
        if isinstance(value, dict):
            names += column_names(value, f"{prefix}{name}.")
    return names
