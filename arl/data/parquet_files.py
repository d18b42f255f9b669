"""Read and write Parquet files with pyarrow, whose errors become a DataError that names the file.

A row of a data file comes as values that JSON has, and bytes. Dates, times, durations and decimals become text, and
maps become lists of {key, value}, so that no value depends on a time zone or on pandas.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from arl.errors import DataError

BATCH_ROWS = 1024  # that are in memory as Python objects at once


def write_parquet(table: pa.Table, path: Path) -> None:
    """Write a file whose pages have checksums.

    Raises:
        OSError: it cannot be written.
    """
    with pa.OSFile(str(path), "wb") as file:  # pyarrow takes a path that has a colon for the address of a store
        pq.write_table(table, file, write_page_checksum=True)


def parquet_rows(path: Path, field: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file with any columns.

    Args:
        field: how messages name it, as in "data.path".

    Raises:
        DataError: the file cannot be read.
    """
    with _opened(path, f"{field} {path}", "download or write it again") as file:
        plain = pa.schema([pa.field(column.name, _plain(column.type)) for column in file.schema_arrow])
        for batch in file.iter_batches(BATCH_ROWS):
            yield from pa.Table.from_batches([batch]).cast(plain).to_pylist()


@contextmanager
def _opened(path: Path, what: str, remedy: str) -> Iterator[pq.ParquetFile]:
    """Open a file, and turn the errors of reading it into a DataError that begins with `what`."""
    try:
        with path.open("rb") as file:
            yield pq.ParquetFile(file, page_checksum_verification=True)
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = str(error).split("\n", 1)[0] or type(error).__name__
        raise DataError(f"{what}: cannot be read as Parquet ({reason}); {remedy}") from error


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type as which values of `kind` are read."""
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
