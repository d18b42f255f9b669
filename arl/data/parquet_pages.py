"""Add up what the pages of a Parquet file say of themselves, because its reader believes them and not the footer.

    column chunk ─► header of a page: bytes when decompressed, values ─► skip its content ─► the next header ─► sums

pyarrow shows no page headers, of which only some integers are needed.
"""

from typing import BinaryIO, NamedTuple

import pyarrow.parquet as pq

from arl.data.thrift import INTEGERS, STRUCT, ThriftReader

UNCOMPRESSED, COMPRESSED = (2,), (3,)  # fields of a page header, by their numbers
VALUES = ((5, 1), (8, 1))  # of a data page of version 1, and of version 2
DEEPEST = 4  # structs of a header in each other that are looked into; Parquet has three
LARGEST_PAGE = 1 << 31  # bytes


class PageSums(NamedTuple):
    """Hold what the pages of a column chunk are together."""

    num_bytes: int  # when decompressed
    num_values: int


def sum_pages(file: BinaryIO, chunk: pq.ColumnChunkMetaData) -> PageSums:
    """Read the headers of all pages of a column chunk.

    Raises:
        ValueError: one of them is damaged.
    """
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset is not None:
        start = min(start, chunk.dictionary_page_offset)
    end = start + chunk.total_compressed_size
    file.seek(max(start, 0))
    num_bytes = 0
    num_values = 0
    while file.tell() < end:
        numbers = _read_numbers(ThriftReader(file, "the header of a page"))
        skipped = numbers.get(COMPRESSED, -1)
        if not 0 <= skipped < LARGEST_PAGE or numbers.get(UNCOMPRESSED, -1) < 0:
            raise ValueError(f"a page of its column {chunk.path_in_schema} has no size, or an impossible one")
        num_bytes += numbers[UNCOMPRESSED]
        num_values += sum(max(0, numbers.get(field, 0)) for field in VALUES)
        file.seek(skipped, 1)
    return PageSums(num_bytes, num_values)


def _read_numbers(header: ThriftReader, around: tuple[int, ...] = ()) -> dict[tuple[int, ...], int]:
    """Read the integers of a struct: the numbers of the fields around each, and of its own -> the integer."""
    numbers = {}
    for field, kind in header.fields():
        place = (*around, field)
        if kind in INTEGERS:
            numbers[place] = header.integer()
        elif kind == STRUCT and len(place) < DEEPEST:
            numbers |= _read_numbers(header, place)
        else:
            header.skip(kind)
    return numbers
