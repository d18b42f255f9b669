"""Read the rows of parquet files as values that JSON has, and bytes.

schema ─► batches, texts in dictionaries ─► pieces of few bytes ─► plain types: text, numbers, bytes, lists, … ─► rows

Dates, times, durations and decimals become text, and maps become lists of {key, value}. So a row reaches a reward
worker as it was, and no value depends on a time zone or on pandas.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from arl.data.jsonl import DEEPEST, LONGEST_LINE
from arl.data.parquet_files import open_foreign
from arl.errors import DataError

BATCH = 1024  # rows that are in memory as Python objects at once, at most
PIECE_BYTES = LONGEST_LINE  # of texts; a longer row is refused, as a longer line of jsonl is


def parquet_rows(path: Path, field: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a parquet file.

    A dictionary holds a text once, however many rows have it, so a batch may be a thousand times as large as its
    bytes. It is therefore measured while it is encoded, and decoded in pieces.

    Args:
        field: how messages name it, as in "data.path".

    Raises:
        DataError: the file cannot be read, two of its columns have one name, a row is longer than LONGEST_LINE, or
            all rows are longer than a file of its size can hold.
    """
    what = f"{field} {path}"
    with open_foreign(path, what) as (file, most_bytes):
        _check_names(file.schema_arrow, what)
        num_bytes = 0
        num_rows = 0
        for batch in file.iter_batches(BATCH):
            batch.validate(full=True)
            for piece, piece_bytes in _pieces(batch):
                if piece_bytes > PIECE_BYTES:
                    raise DataError(
                        f"{what} row {num_rows + 1}: has {piece_bytes:,} bytes, and {PIECE_BYTES:,} is the most; "
                        "shorten it, or take it out of the file"
                    )
                num_bytes += piece_bytes
                if num_bytes > most_bytes:
                    raise DataError(
                        f"{what}: its texts have more than {most_bytes:,} bytes, too many for a file of its size; "
                        "give a file that repeats less, or jsonl"
                    )
                yield from _rows_of(piece)
                num_rows += len(piece)


def _pieces(batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Divide a batch until the texts of each piece have at most PIECE_BYTES, or it has one row. Yields both."""
    num_bytes = sum(map(_text_bytes, batch.columns))
    if len(batch) <= 1 or num_bytes <= PIECE_BYTES:
        yield batch, num_bytes
        return
    middle = len(batch) // 2
    for rows in (range(middle), range(middle, len(batch))):
        yield from _pieces(batch.take(pa.array(rows)))  # a slice keeps all values of a list, and a cast decodes them


def _rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows of a batch.

    Raises:
        ArrowException: it has a type without a plain one.
    """
    plain = pa.schema([_plain_field(column) for column in batch.schema])
    return list(pa.Table.from_batches([batch]).cast(plain).to_pylist())


def _text_bytes(column: pa.Array) -> int:
    """Return how many bytes the texts of a column have when they are decoded."""
    types = pa.types
    if isinstance(column, pa.ExtensionArray):
        return _text_bytes(column.storage)
    if types.is_dictionary(column.type):
        if not _is_text(column.type.value_type):
            return 0
        lengths = pc.binary_length(column.dictionary)
        return _total(lengths.take(column.indices))
    if _is_text(column.type):
        return _total(pc.binary_length(column))
    if types.is_struct(column.type):
        return sum(map(_text_bytes, column.flatten()))
    if types.is_map(column.type):
        start, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
        return _text_bytes(column.keys[start:end]) + _text_bytes(column.items[start:end])
    if types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
        return _text_bytes(column.flatten())
    return 0


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    is_string = types.is_string(kind) or types.is_large_string(kind)
    is_bytes = types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    return bool(is_string or is_bytes)


def _total(lengths: pa.Array) -> int:
    return int(pc.sum(lengths.cast(pa.int64())).as_py() or 0)


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
