"""Write Parquet files, and read what somebody else wrote. Every reader opens it here, so that a bad one is a DataError.

    open_parquet: regular file? ─► footer: columns, types, sizes ─► ParquetFile, whose pages are checked
    open_foreign: the same for any columns and codecs ─► headers of pages: sizes ─► ParquetFile, texts in dictionaries

A few bytes of Parquet can stand for gigabytes: a run length, a dictionary, a compressed page of zeros. So the footer
must agree with the size of the file before anything is decoded, and texts can be left in their dictionaries.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from arl.data.parquet_footer import check_chunks
from arl.data.parquet_pages import sum_pages
from arl.errors import DataError

VALUES_PER_BYTE = 64  # of the file; one token takes several bytes, since its id and its logprob are noise
LEAST_VALUES = 1 << 22  # which are accepted in a file of any size
DECODED_PER_BYTE = 1 << 10  # of the file; a system prompt that every row repeats stands in a dictionary once
LEAST_DECODED = 1 << 26  # bytes, which are accepted in a file of any size
CODECS = {"SNAPPY", "UNCOMPRESSED"}  # what pyarrow writes by default, and so arl
FOOTER_TEXT = 1 << 24  # bytes
FOOTER_ENTRIES = 1 << 18


@contextmanager
def open_parquet(
    path: Path,
    columns: pa.Schema,
    remedy: str,
    dictionaries: Sequence[str] = (),
) -> Iterator[pq.ParquetFile]:
    """Open a file that has `columns` with these types, and maybe others. Only reading belongs into the block.

    Args:
        remedy: ends the message, as in "write it again".
        dictionaries: paths of text columns that stay encoded, in which a long text stands once however often it occurs.

    Raises:
        DataError: it cannot be read, is damaged, lacks a column, or is larger than its bytes can be.
    """
    with _refused(str(path), remedy), path.open("rb") as file:
        metadata, _ = _read_footer(file)
        _check_columns(metadata.schema.to_arrow_schema(), columns)
        _check_codecs(metadata)
        yield _open_pages(file, metadata, [path for path in _paths(metadata) if path in dictionaries])


@contextmanager
def open_foreign(path: Path, what: str) -> Iterator[tuple[pq.ParquetFile, int]]:
    """Open a file of any columns, in any codec, and say how many bytes it may be when it is decoded.

    Every text stays encoded in a dictionary. Only reading belongs into the block.

    Args:
        what: begins the message, as in "data.path problems.parquet".

    Raises:
        DataError: it cannot be read, is damaged, or is larger than its bytes can be.
    """
    with _refused(what, "download or write it again"), path.open("rb") as file:
        metadata, size = _read_footer(file)
        _check_pages(file, metadata, size)
        texts = [
            column.path
            for column in map(metadata.schema.column, range(metadata.num_columns))
            if column.physical_type == "BYTE_ARRAY" and column.logical_type.type != "DECIMAL"
        ]
        yield _open_pages(file, metadata, texts), _most_decoded(size)


def write_parquet(table: pa.Table, path: Path) -> None:
    """Write a file whose pages have sums.

    Raises:
        OSError: it cannot be written.
    """
    with pa.OSFile(str(path), "wb") as file:  # pyarrow takes a path that has a colon for the address of a store
        pq.write_table(table, file, write_page_checksum=True)


def read_parquet(path: Path, columns: pa.Schema, remedy: str, dictionaries: Sequence[str] = ()) -> pa.Table:
    """Read `columns` of a file, whole.

    Raises:
        DataError: see `open_parquet`.
    """
    with open_parquet(path, columns, remedy, dictionaries) as file:
        table = file.read(columns=columns.names)
        table.validate(full=True)
    return table


def _read_footer(file: BinaryIO) -> tuple[pq.FileMetaData, int]:
    """Return what the footer says, checked against the size of the file, and that size."""
    metadata = pq.ParquetFile(
        file,
        thrift_string_size_limit=FOOTER_TEXT,
        thrift_container_size_limit=FOOTER_ENTRIES,
    ).metadata
    size = file.seek(0, 2)
    check_chunks(file, metadata, size)
    _check_sizes(metadata, size)
    return metadata, size


def _open_pages(file: BinaryIO, metadata: pq.FileMetaData, dictionaries: Sequence[str]) -> pq.ParquetFile:
    return pq.ParquetFile(
        file,
        metadata=metadata,
        read_dictionary=dictionaries,
        page_checksum_verification=True,  # where the writer has put sums
    )


def _paths(metadata: pq.FileMetaData) -> list[str]:
    return [metadata.schema.column(place).path for place in range(metadata.num_columns)]


@contextmanager
def _refused(what: str, remedy: str) -> Iterator[None]:
    """Turn the errors of reading into a DataError."""
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = str(error).split("\n", 1)[0] or type(error).__name__
        raise DataError(f"{what}: cannot be read as Parquet ({reason}); {remedy}") from error


def _check_columns(there: pa.Schema, wanted: pa.Schema) -> None:
    missing = [name for name in wanted.names if name not in there.names]
    if missing:
        raise ValueError(f"it lacks {', '.join(sorted(missing))}, as if an older arl had written it")
    for field in wanted:
        places = there.get_all_field_indices(field.name)
        if len(places) > 1:
            raise ValueError(f"its column {field.name} is there {len(places)} times")
        found = there.field(places[0]).type
        if found != field.type:
            raise ValueError(f"its column {field.name} has type {found}, and must have {field.type}")


def _check_codecs(metadata: pq.FileMetaData) -> None:
    for number in range(metadata.num_row_groups):
        for place in range(metadata.num_columns):
            chunk = metadata.row_group(number).column(place)
            if chunk.compression not in CODECS:
                raise ValueError(f"its column {chunk.path_in_schema} is compressed by {chunk.compression}; use snappy")


def _check_sizes(metadata: pq.FileMetaData, size: int) -> None:
    """Refuse a file whose footer counts more than its bytes can hold.

    A value inside lists and structs counts once for each of them, because each becomes an object as well.
    """
    most_values = LEAST_VALUES + VALUES_PER_BYTE * size
    if not 0 <= metadata.num_rows <= most_values:
        raise ValueError(f"it has {metadata.num_rows} rows, more than {size} bytes can hold")
    depths = [path.count(".") + 1 for path in _paths(metadata)]
    widths = [_width(metadata.schema.column(place)) for place in range(metadata.num_columns)]
    num_rows = 0
    num_values = 0
    num_bytes = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        num_rows += group.num_rows
        for place in range(metadata.num_columns):
            chunk = group.column(place)
            if chunk.num_values < 0 or chunk.total_uncompressed_size < 0:
                raise ValueError(f"its column {chunk.path_in_schema} has a negative size")
            num_values += chunk.num_values * depths[place]
            num_bytes += max(chunk.total_uncompressed_size, chunk.num_values * widths[place])
    if num_rows != metadata.num_rows:
        raise ValueError(f"its row groups have {num_rows} rows, and its footer counts {metadata.num_rows}")
    if num_values > most_values:
        raise ValueError(f"it has {num_values} values, more than {size} bytes can hold")
    if num_bytes > _most_decoded(size):
        raise ValueError(f"it has {num_bytes} bytes when it is decoded, too many for a file of {size} bytes")


def _check_pages(file: BinaryIO, metadata: pq.FileMetaData, size: int) -> None:
    """Refuse a file whose pages are larger than its bytes can be, whatever its footer says."""
    num_values = 0
    num_bytes = 0
    for number in range(metadata.num_row_groups):
        for place in range(metadata.num_columns):
            sums = sum_pages(file, metadata.row_group(number).column(place))
            num_values += sums.num_values
            num_bytes += sums.num_bytes
    if num_values > LEAST_VALUES + VALUES_PER_BYTE * size:
        raise ValueError(f"its pages have {num_values} values, more than {size} bytes can hold")
    if num_bytes > _most_decoded(size):
        raise ValueError(f"its pages have {num_bytes} bytes when they are decoded, too many for a file of {size} bytes")


def _most_decoded(size: int) -> int:
    """Return how many bytes a file may have when it is decoded."""
    return LEAST_DECODED + DECODED_PER_BYTE * size


def _width(column: pq.ColumnSchema) -> int:
    """Return the bytes of each value, if they are as many for all of them and may be any number; else 0."""
    return int(column.length) if column.physical_type == "FIXED_LEN_BYTE_ARRAY" else 0
