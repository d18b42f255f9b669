"""Write Parquet files, and read what somebody else wrote. Every reader opens it here, so that a bad one is a DataError.

    open_parquet: regular file? ─► footer: columns, types, sizes ─► ParquetFile, whose pages are checked

A few bytes of Parquet can stand for gigabytes: a run length, a dictionary, a compressed page of zeros. So the footer
must agree with the size of the file before anything is decoded, and texts can be left in their dictionaries.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from arl.errors import DataError
from arl.files import open_regular

MOST_ROWS = 1 << 20
MOST_ROW_GROUPS = 1 << 10
VALUES_PER_BYTE = 64  # of the file; one token takes several bytes, since its id and its logprob are noise
LEAST_VALUES = 1 << 20  # which are accepted in a file of any size
CODECS = {"SNAPPY", "UNCOMPRESSED"}  # what pyarrow writes by default; others expand without bound
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
    with _refused(path, remedy), open_regular(path) as file:
        metadata = pq.ParquetFile(
            file,
            thrift_string_size_limit=FOOTER_TEXT,
            thrift_container_size_limit=FOOTER_ENTRIES,
        ).metadata
        paths = [metadata.schema.column(place).path for place in range(metadata.num_columns)]
        size = file.seek(0, 2)
        _check_columns(metadata.schema.to_arrow_schema(), columns)
        _check_sizes(metadata, size)
        yield pq.ParquetFile(
            file,
            metadata=metadata,
            read_dictionary=[path for path in paths if path in dictionaries],
            page_checksum_verification=True,  # where the writer has put sums
        )


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


@contextmanager
def _refused(path: Path, remedy: str) -> Iterator[None]:
    """Turn the errors of reading into a DataError."""
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = str(error).split("\n", 1)[0]
        raise DataError(f"{path}: cannot be read as Parquet ({reason}); {remedy}") from error


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


def _check_sizes(metadata: pq.FileMetaData, size: int) -> None:
    """Refuse a file whose footer counts more than its bytes can hold."""
    if not 0 <= metadata.num_rows <= MOST_ROWS:
        raise ValueError(f"it has {metadata.num_rows} rows, and {MOST_ROWS} is the most")
    if metadata.num_row_groups > MOST_ROW_GROUPS:
        raise ValueError(f"it has {metadata.num_row_groups} row groups, and {MOST_ROW_GROUPS} is the most")
    most_values = LEAST_VALUES + VALUES_PER_BYTE * size
    values = [0] * metadata.num_columns
    num_rows = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        num_rows += group.num_rows
        for place in range(metadata.num_columns):
            chunk = group.column(place)
            values[place] += chunk.num_values
            if chunk.compression not in CODECS:
                raise ValueError(f"its column {chunk.path_in_schema} is compressed by {chunk.compression}; use snappy")
    if num_rows != metadata.num_rows:
        raise ValueError(f"its row groups have {num_rows} rows, and its footer counts {metadata.num_rows}")
    if max(values, default=0) > most_values:
        raise ValueError(f"a column has {max(values)} values, more than {size} bytes can hold")
