"""Refuse what a Parquet footer may say of a column chunk so that pyarrow ends the process, instead of raising.

    footer ─► row groups ─► columns ─► is it encrypted? how many levels does it count? ─► compared with the schema

pyarrow 26.0 does so in `RowGroupMetaData.column`, in whose constructor an exception of C++ meets no handler.
"""

import io
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import pyarrow.parquet as pq

from arl.data.thrift import LIST, ThriftReader

TAIL = 8  # bytes: the length of the footer, and the mark of the format
ROW_GROUPS = 4  # field of the footer
COLUMNS = 1  # of a row group
METADATA, ENCRYPTION = 3, 8  # of a column chunk
SIZES = 16  # of its metadata
TEXT_BYTES, REPETITIONS, DEFINITIONS = 1, 2, 3  # of its sizes


class _Chunk(NamedTuple):
    """Hold what the footer says of one column chunk."""

    is_encrypted: bool
    counts_text_bytes: bool
    num_counts: dict[int, int]  # REPETITIONS or DEFINITIONS -> levels that are counted


def check_chunks(file: BinaryIO, metadata: pq.FileMetaData, size: int) -> None:
    """Refuse a footer for which pyarrow would end this process.

    Args:
        size: of the file, bytes.

    Raises:
        ValueError: it says something impossible of a column, or one is encrypted.
    """
    columns = [metadata.schema.column(place) for place in range(metadata.num_columns)]
    footer = _open_footer(file, size)
    for _ in footer.inside(ROW_GROUPS):
        chunks = list(_chunks(footer))
        if len(chunks) != len(columns):
            raise ValueError(f"a row group has {len(chunks)} columns, and the schema {len(columns)}")
        for column, chunk in zip(columns, chunks, strict=True):
            _check_chunk(column, chunk)


def _open_footer(file: BinaryIO, size: int) -> ThriftReader:
    file.seek(size - TAIL)
    length = int.from_bytes(file.read(4), "little")
    file.seek(size - TAIL - length)
    return ThriftReader(io.BytesIO(file.read(length)), "the footer")


def _chunks(footer: ThriftReader) -> Iterator[_Chunk]:
    """Yield the column chunks of the row group that begins here."""
    for _ in footer.inside(COLUMNS):
        yield _read_chunk(footer)


def _read_chunk(footer: ThriftReader) -> _Chunk:
    is_encrypted = False
    fields: dict[int, int] = {}
    for field, kind in footer.fields():
        is_encrypted = is_encrypted or field == ENCRYPTION
        if field == METADATA:
            fields = _read_sizes(footer)
        else:
            footer.skip(kind)
    return _Chunk(is_encrypted, TEXT_BYTES in fields, fields)


def _read_sizes(footer: ThriftReader) -> dict[int, int]:
    """Read the sizes in the metadata that begin here: the field of each -> its elements, if it is a list."""
    found = {}
    for _ in footer.inside(SIZES):
        for field, kind in footer.fields():
            found[field] = 0
            if kind == LIST:
                found[field] = footer.skip_list()
            else:
                footer.skip(kind)
    return found


def _check_chunk(column: pq.ColumnSchema, chunk: _Chunk) -> None:
    if chunk.is_encrypted:
        raise ValueError(f"its column {column.path} is encrypted")
    levels = {REPETITIONS: column.max_repetition_level, DEFINITIONS: column.max_definition_level}
    for field, deepest in levels.items():
        if chunk.num_counts.get(field, 0) not in (0, deepest + 1):
            raise ValueError(f"its column {column.path} counts levels that it does not have")
    if chunk.counts_text_bytes and column.physical_type != "BYTE_ARRAY":
        raise ValueError(f"its column {column.path} counts bytes of texts, and holds none")
