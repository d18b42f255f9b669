"""Check what pyarrow aborts the process for, instead of raising: what a Parquet footer says of the sizes of levels.

pyarrow looks at it when a column chunk is asked for (seen with 26.0). It compares the histograms of levels with the
schema, and wants bytes of texts only where there are texts.
"""

import io
from typing import BinaryIO

import pyarrow.parquet as pq

from arl.data.parquet_pages import BINARY, FIXED_BYTES, LIST, SET, STRUCT, ThriftStruct

TAIL = 8  # bytes: the length of the footer, and the mark of the format
ROW_GROUPS, COLUMNS, CHUNK, SIZES = 4, 1, 3, 16  # fields of the footer, a row group, a column and a chunk
TEXT_BYTES, REPETITIONS, DEFINITIONS = 1, 2, 3  # fields of the sizes
LONG_LIST = 15  # then the number of its elements follows


class _Footer(ThriftStruct):
    """Read a footer; `lengths` are the numbers of elements of its lists."""

    deepest = 12
    what = "the footer"

    def __init__(self, file: BinaryIO) -> None:
        self.lengths: dict[tuple[int, ...], int] = {}
        super().__init__(file)

    def _read_list(self, place: tuple[int, ...]) -> None:
        first = self._byte()
        count, kind = first >> 4, first & 15
        if count == LONG_LIST:
            count = self._unsigned()
        self.lengths[place] = count
        for number in range(count):
            if kind == STRUCT:
                self._read_struct((*place, number))
            elif kind in (LIST, SET):
                self._read_list((*place, number))
            elif kind == BINARY:
                self._skip(self._unsigned())
            elif kind in FIXED_BYTES:
                self._skip(max(1, FIXED_BYTES[kind]))  # in a list, a boolean has a byte
            else:
                self._unsigned()


def check_level_sizes(file: BinaryIO, metadata: pq.FileMetaData, size: int) -> None:
    """Refuse a footer for which pyarrow would end this process.

    Args:
        size: of the file, bytes.

    Raises:
        ValueError: it says something impossible of the sizes of a column.
    """
    file.seek(max(0, size - TAIL))
    length = int.from_bytes(file.read(TAIL)[:4], "little")
    file.seek(max(0, size - TAIL - length))
    footer = _Footer(io.BytesIO(file.read(length)))
    for group in range(metadata.num_row_groups):
        for place in range(metadata.num_columns):
            column = metadata.schema.column(place)
            sizes = (ROW_GROUPS, group, COLUMNS, place, CHUNK, SIZES)
            levels = {REPETITIONS: column.max_repetition_level, DEFINITIONS: column.max_definition_level}
            for field, deepest in levels.items():
                if footer.lengths.get((*sizes, field), 0) not in (0, deepest + 1):
                    raise ValueError(f"its column {column.path} counts levels that it does not have")
            if (*sizes, TEXT_BYTES) in footer.numbers and column.physical_type != "BYTE_ARRAY":
                raise ValueError(f"its column {column.path} counts bytes of texts, and holds none")
