"""Read structs of Thrift's compact protocol, in which Parquet describes itself, field by field.

pyarrow shows no page headers, and ends the process for some footers. So arl reads the few fields of both that matter.
"""

from collections.abc import Iterator
from typing import BinaryIO

BINARY, LIST, SET, STRUCT = 8, 9, 10, 12  # types of values
INTEGERS = (4, 5, 6)  # of 16, 32 and 64 bits
FIXED_BYTES = {1: 0, 2: 0, 3: 1, 7: 8}  # true, false, byte, double; as fields
BOOLEANS = (1, 2)
LONG_LIST = 15  # then the number of elements follows
DEEPEST = 16  # structs and lists in each other; Parquet has six
LONGEST_INTEGER = 10  # bytes
LONGEST_TEXT = 1 << 24  # bytes, as the least and the largest value of a page


class ThriftReader:
    """Read one struct from where `file` is. Whoever iterates reads or skips each value before the next.

    Args:
        what: is read, as messages name it.

    Raises (from every method):
        ValueError: it is damaged.
    """

    def __init__(self, file: BinaryIO, what: str) -> None:
        self._file = file
        self._read = file.read
        self._what = what

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and type of each field of a struct."""
        field = 0
        while kind := (first := self._byte()) & 15:
            delta = first >> 4
            field = field + delta if delta else self.integer()
            yield field, kind

    def inside(self, wanted: int) -> Iterator[None]:
        """Yield at the beginning of the struct in field `wanted`, or of each one in its list; skip other fields."""
        for field, kind in self.fields():
            if field == wanted and kind == STRUCT:
                yield
            elif field == wanted and kind == LIST:
                yield from self._structs()
            else:
                self.skip(kind)

    def _structs(self) -> Iterator[None]:
        kind, count = self._list_header()
        if kind != STRUCT and count:
            raise ValueError(f"{self._what} has a list of other values than structs")
        for _ in range(count):
            yield

    def integer(self) -> int:
        """Read an integer."""
        number = self._unsigned()
        return (number >> 1) ^ -(number & 1)

    def skip(self, kind: int, depth: int = 0) -> None:
        """Skip a value, which is inside of `depth` others that are skipped."""
        if depth > DEEPEST:
            raise ValueError(f"{self._what} is nested too deeply")
        if kind in INTEGERS:
            self._unsigned()
        elif kind == BINARY:
            self._pass_over(self._unsigned())
        elif kind in FIXED_BYTES:
            self._pass_over(FIXED_BYTES[kind])
        elif kind == STRUCT:
            for _, inner in self.fields():
                self.skip(inner, depth + 1)
        elif kind in (LIST, SET):
            self.skip_list(depth)
        else:
            raise ValueError(f"{self._what} has a value of type {kind}, which Parquet does not use")

    def skip_list(self, depth: int = 0) -> int:
        """Skip a list, and return how many elements it has."""
        kind, count = self._list_header()
        if kind in FIXED_BYTES:
            size = 1 if kind in BOOLEANS else FIXED_BYTES[kind]
            self._pass_over(count * size)
            return count
        for _ in range(count):
            self.skip(kind, depth + 1)
        return count

    def _list_header(self) -> tuple[int, int]:
        """Return the type of the elements of a list, and their number. Each of them takes a byte or more."""
        first = self._byte()
        count = first >> 4
        if count == LONG_LIST:
            count = self._unsigned()
        return first & 15, count

    def _pass_over(self, count: int) -> None:
        if count > LONGEST_TEXT:
            raise ValueError(f"{self._what} has a text of {count} bytes")
        self._file.seek(count, 1)

    def _unsigned(self) -> int:
        number = 0
        for place in range(LONGEST_INTEGER):
            byte = self._byte()
            number |= (byte & 127) << (7 * place)
            if byte < 128:
                return number
        raise ValueError(f"{self._what} has an integer without end")

    def _byte(self) -> int:
        byte = self._read(1)
        if not byte:
            raise ValueError(f"the file ends in {self._what}")
        return byte[0]
