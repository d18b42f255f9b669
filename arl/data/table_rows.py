"""Read the rows of jsonl and parquet files. Each row knows its place, because messages name it.

A row goes on to reward workers by msgpack, so a line that msgpack could not carry unchanged is malformed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from arl.errors import DataError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # some editors begin a file with it


class Row(Struct, frozen=True):
    """Hold one row of a file."""

    place: str  # problems.jsonl:3, or problems.parquet row 3, counted from 1
    values: dict[str, Any]  # column -> value; structs are dicts
    malformed: str = ""  # why it is no row of columns; empty: it is one


def read_rows(path: Path, field: str) -> Iterator[Row]:
    r"""Yield the rows of a jsonl file (one JSON object a line) or of a parquet file.

    A line ends at \n and nowhere else: JSON allows U+2028 and U+0085 inside a string. One that is not a JSON object is
    yielded as malformed.

    Args:
        path: the file; its suffix decides.
        field: how messages name it, as in "data.path".

    Raises:
        DataError: the file cannot be read at all.
    """
    if path.suffix == ".parquet":
        from arl.data.parquet_files import parquet_rows  # and pyarrow

        for number, values in enumerate(parquet_rows(path, field), 1):
            yield Row(f"{path} row {number}", values)
        return
    number = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                text = (line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line).decode()
                if text.strip():
                    yield _jsonl_row(f"{path}:{number}", text)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{field} {path}: cannot be read as text (line {number}: {error}); give one JSON object a line, in UTF-8"
        ) from error
    except OSError as error:
        raise DataError(f"{field} {path}: cannot be read ({error.strerror})") from error


def _jsonl_row(place: str, line: str) -> Row:
    try:
        values: Any = msgspec.json.decode(line)
        msgspec.msgpack.encode(values)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        is_number = "NaN" in line or "Infinity" in line  # as Python's json writes them
        rule = "which has no NaN and no Infinity: write null" if is_number else "and each line must be one JSON object"
        return Row(place, {}, malformed=f"not JSON ({error}), {rule}")
    except OverflowError:
        return Row(place, {}, malformed="has an integer that takes more than 64 bits; write it as text, in quotes")
    if not isinstance(values, dict):
        return Row(place, {}, malformed=f"is {type(values).__name__}, and must be one JSON object")
    return Row(place, values)


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


def column_names(values: dict[str, Any]) -> list[str]:
    """List the columns of a row, those inside structs as `outer.inner`."""
    names: list[str] = []
    left = [("", values)]
    while left:
        prefix, inner = left.pop(0)
        for name, value in inner.items():
            names.append(f"{prefix}{name}")
            if isinstance(value, dict):
                left.append((f"{prefix}{name}.", value))
    return names
