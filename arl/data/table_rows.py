"""Read the rows of jsonl and Parquet files, and write Parquet. Each row knows its place, because messages name it.

A row goes on to reward workers by msgpack, so a line that msgpack could not carry unchanged is malformed. A row of a
Parquet file comes as values that JSON has, and bytes. Dates, times, durations and decimals become text, and maps become
lists of {key, value}, so that no value depends on a time zone or on pandas.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
from msgspec import Struct

from arl.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa  # imported where it is used: it takes a fifth of a second

BATCH_ROWS = 1024  # of Parquet that are in memory as Python objects at once
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # some editors begin a file with it
_MESSAGES = msgspec.msgpack.Encoder()  # as reward workers are sent


class Row(Struct, frozen=True):
    """Hold one row of a file."""

    place: str  # problems.jsonl:3, or problems.parquet row 3, counted from 1
    values: dict[str, Any]  # column -> value; structs are dicts
    malformed: str = ""  # why it is no row of columns; empty: it is one


def read_rows(path: Path, field: str) -> Iterator[Row]:
    r"""Yield the rows of a jsonl file (one JSON object a line), of a file that is one JSON array, or of a parquet file.

    A line ends at \n and nowhere else: JSON allows U+2028 and U+0085 inside a string. One that is not a JSON object is
    yielded as malformed.

    Args:
        path: the file; its suffix decides.
        field: how messages name it, as in "data.path".

    Raises:
        DataError: the file cannot be read at all.
    """
    name = str(path)
    if path.suffix == ".parquet":
        for number, values in enumerate(parquet_rows(path, field), 1):
            yield Row(f"{name} row {number}", values)
        return
    number = 0
    try:
        with path.open("rb") as file:
            for number, values in enumerate(_array(file), 1):
                yield _row(f"{name} row {number}", values)
            for number, line in enumerate(file, 1):
                text = (line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line).decode()
                if text.strip():
                    yield _jsonl_row(f"{name}:{number}", text)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{field} {path}: cannot be read as text (line {number}: {error}); give one JSON object a line, in UTF-8 "
            f"(`iconv -f UTF-16 -t UTF-8` converts UTF-16)"
        ) from error
    except OSError as error:
        raise DataError(f"{field} {path}: cannot be read ({error.strerror})") from error


def _array(file: BinaryIO) -> list[Any]:
    """Return the rows of a file that is one JSON array. Of any other file nothing is read, and there are none."""
    begins_so = file.read(1024).removeprefix(BYTE_ORDER_MARK).lstrip().startswith(b"[")
    file.seek(0)
    if begins_so:
        with contextlib.suppress(msgspec.DecodeError, RecursionError, UnicodeError):  # the lines will say which
            return msgspec.json.decode(file.read().removeprefix(BYTE_ORDER_MARK), type=list[Any])
    file.seek(0)
    return []


def _jsonl_row(place: str, line: str) -> Row:
    try:
        return _row(place, msgspec.json.decode(line))
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        is_number = "NaN" in line or "Infinity" in line  # as Python's json writes them
        rule = "and each line must be one JSON object, as `jq -c . FILE` writes it, or `jq -c '.data[]' FILE` a list"
        if is_number:
            rule = "which has no NaN and no Infinity: write null"
        return Row(place, {}, malformed=f"not JSON ({error}), {rule}")


def _row(place: str, values: Any) -> Row:
    try:
        _MESSAGES.encode(values)
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
    names = list(values)
    for name, value in values.items():
        if isinstance(value, dict):
            names += [f"{name}.{inner}" for inner in column_names(value)]
    return names


def write_parquet(table: "pa.Table", path: Path) -> None:
    """Write a file whose pages have checksums.

    Raises:
        OSError: it cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pa.OSFile(str(path), "wb") as file:  # pyarrow takes a path that has a colon for the address of a store
        pq.write_table(table, file, write_page_checksum=True)


def parquet_rows(path: Path, field: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file with any columns.

    Args:
        field: how messages name it, as in "data.path".

    Raises:
        DataError: the file cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as opened:
            file = pq.ParquetFile(opened, page_checksum_verification=True)
            plain = pa.schema([pa.field(column.name, _plain(column.type)) for column in file.schema_arrow])
            for batch in file.iter_batches(BATCH_ROWS):
                yield from pa.Table.from_batches([batch]).cast(plain).to_pylist()
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = str(error).split("\n", 1)[0] or type(error).__name__
        raise DataError(f"{field} {path}: cannot be read as Parquet ({reason}); download or write it again") from error


def _plain(kind: "pa.DataType") -> "pa.DataType":
    """Return the type as which values of `kind` are read."""
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(kind):
        return _plain(kind.value_type)
    if types.is_temporal(kind) or types.is_decimal(kind):
        return pa.string()
    if types.is_struct(kind):
        return pa.struct([pa.field(inner.name, _plain(inner.type)) for inner in kind])
    if types.is_map(kind):
        return pa.list_(pa.struct([("key", _plain(kind.key_type)), ("value", _plain(kind.item_type))]))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _plain(kind.value_type)))
    return kind
