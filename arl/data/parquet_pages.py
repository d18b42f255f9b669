"""Add up what the pages of a Parquet file say of themselves, because its reader believes them and not the footer.

    column chunk ─► header of a page: bytes when decompressed, values ─► skip its content ─► the next header ─► sums

pyarrow shows no page headers. They are structs of Thrift's compact protocol, of which only some integers are needed.
"""

from typing import BinaryIO, NamedTuple

import pyarrow.parquet as pq

BINARY, LIST, SET, MAP, STRUCT = 8, 9, 10, 11, 12  # types of Thrift; the rest are numbers
FIXED_BYTES = {1: 0, 2: 0, 3: 1, 7: 8}  # true, false, byte, double
UNCOMPRESSED, COMPRESSED = (2,), (3,)  # fields of a page header, by their numbers
VALUES = ((5, 1), (8, 1))  # of a data page of version 1, and of version 2
DEEPEST = 8  # structs and lists of a header; Parquet has three
LONGEST_INTEGER = 10  # bytes
LARGEST_PAGE = 1 << 31  # bytes
LONGEST_TEXT = 1 << 24  # bytes, as the least and the largest value of a page


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
        header = ThriftStruct(file)
        skipped = header.numbers.get(COMPRESSED, -1)
        if not 0 <= skipped < LARGEST_PAGE or header.numbers.get(UNCOMPRESSED, -1) < 0:
            raise ValueError(f"a page of its column {chunk.path_in_schema} has no size, or an impossible one")
        num_bytes += header.numbers[UNCOMPRESSED]
        num_values += sum(max(0, header.numbers.get(field, 0)) for field in VALUES)
        file.seek(skipped, 1)
    return PageSums(num_bytes, num_values)


class ThriftStruct:
    """Read one page header; `numbers` are its integers, by the numbers of the fields around them and their own."""

    deepest = DEEPEST
    what = "the header of a page"

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.numbers: dict[tuple[int, ...], int] = {}
        self._read_struct(())

    def _read_struct(self, place: tuple[int, ...]) -> None:
        if len(place) > self.deepest:
            raise ValueError(f"{self.what} is nested too deeply")
        field = 0
        while first := self._byte():
            delta, kind = first >> 4, first & 15
            field = field + delta if delta else self._integer()
            self._read_value(kind, (*place, field))

    def _read_value(self, kind: int, place: tuple[int, ...]) -> None:
        if kind == STRUCT:
            self._read_struct(place)
        elif kind == BINARY:
            self._skip(self._unsigned())
        elif kind in FIXED_BYTES:
            self._skip(FIXED_BYTES[kind])
        elif kind in (LIST, SET):
            self._read_list(place)
        elif kind == MAP:
            raise ValueError(f"{self.what} has a map, which Parquet knows none of")
        else:
            self.numbers[place] = self._integer()

    def _read_list(self, place: tuple[int, ...]) -> None:
        raise ValueError(f"{self.what} has a list, which Parquet knows none of")

    def _skip(self, count: int) -> None:
        if count > LONGEST_TEXT:
            raise ValueError(f"{self.what} has a text of {count} bytes")
        self._file.seek(count, 1)

    def _integer(self) -> int:
        number = self._unsigned()
        return (number >> 1) ^ -(number & 1)

    def _unsigned(self) -> int:
        number = 0
        for place in range(LONGEST_INTEGER):
            byte = self._byte()
            number |= (byte & 127) << (7 * place)
            if byte < 128:
                return number
        raise ValueError(f"{self.what} has an integer without end")

    def _byte(self) -> int:
        byte = self._file.read(1)
        if not byte:
            raise ValueError(f"the file ends in {self.what}")
        return byte[0]
