"""Read the rows of parquet files as values that JSON has, and bytes.

schema ─► each column's plain type: text, numbers, booleans, bytes, lists, structs ─► batches ─► checked ─► rows

Dates, times, durations and decimals become text, and maps become lists of {key, value}. So a row reaches a reward
worker as it was, and no value depends on a time zone or on pandas.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from arl.data.jsonl import DEEPEST
from arl.errors import DataError
from arl.files import open_regular

BATCH = 1024  # rows that are in memory as Python objects at once


def parquet_rows(path: Path, field: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a parquet file.

    Args:
        field: how messages name it, as in "data.path".

    Raises:
        DataError: the file cannot be read, or two of its columns have one name.
    """
    try:
        with open_regular(path) as stream, pq.ParquetFile(stream) as file:
            _check_names(file.schema_arrow, f"{field} {path}")
            for batch in file.iter_batches(BATCH):
                yield from _rows_of(batch)
    except (OSError, pa.ArrowException, UnicodeError) as error:
        what = str(error) or type(error).__name__
        raise DataError(f"{field} {path}: cannot be read as parquet ({what}); download or write it again") from error


def _rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows of a batch.

    Raises:
        ArrowException: it is damaged, has text that is no UTF-8, or a type without a plain one.
    """
    batch.validate(full=True)
    plain = pa.schema([_plain_field(column) for column in batch.schema])
    return list(pa.Table.from_batches([batch]).cast(plain).to_pylist())


def _plain_field(column: pa.Field, depth: int = 1) -> pa.Field:
    return pa.field(column.name, _plain(column.type, depth))


def _plain(kind: pa.DataType, depth: int) -> pa.DataType:
    """Return the type as which values of `kind` are read."""
    types = pa.types
    if depth > DEEPEST:
        raise pa.ArrowInvalid(f"it is nested more than {DEEPEST} deep")
    if types.is_dictionary(kind):
        return _plain(kind.value_type, depth)
    if types.is_temporal(kind) or types.is_decimal(kind):
        return pa.string()
    if types.is_struct(kind):
        return pa.struct([_plain_field(inner, depth + 1) for inner in kind])
    if types.is_map(kind):
        key = pa.field("key", _plain(kind.key_type, depth + 1))
        value = pa.field("value", _plain(kind.item_type, depth + 1))
        return pa.list_(pa.struct([key, value]))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field, depth + 1))
    return kind


def _check_names(columns: Iterable[pa.Field], what: str) -> None:
    """Refuse a struct, or a table, two of whose columns have one name: a row could hold one of them only."""
    fields = list(columns)
    for name, count in Counter(column.name for column in fields).items():
        if count > 1:
            raise DataError(f"{what}: has {count} columns {name[:60]!r}, and a row can hold one; rename the others")
    for column in fields:
        if pa.types.is_struct(column.type):
            _check_names(column.type, what)
