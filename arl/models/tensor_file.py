"""Read safetensors files that somebody else may cut short meanwhile: by reads, never through a map. Torch-free.

A process that touches the missing part of a file that it has mapped is killed by SIGBUS, which it cannot catch, and
with it everybody whom it serves. A read that comes back short is an error like any other. The library maps the file
whatever it is asked for, to see its header if for nothing else; so the header is decoded here, under its rules.

    8 bytes: length of the header │ header: name ─► dtype, shape, place │ the values of all tensors, without a gap
"""

import contextlib
import errno
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, NamedTuple

import msgspec
from msgspec import Meta, Raw, Struct
from safetensors import SafetensorError

if TYPE_CHECKING:
    import torch

MOST_HEADER = 1 << 23  # bytes; a tensor takes about a hundred
MOST_AXES = 64
MOST_ITEMS = 2**60  # of a tensor
LENGTH_BYTES = 8
METADATA = "__metadata__"
TORCH_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


Count = Annotated[int, Meta(ge=0, le=2**53)]


class _Entry(Struct):
    dtype: str
    shape: Annotated[list[Count], Meta(max_length=MOST_AXES)]
    data_offsets: tuple[Count, Count]


class StoredTensor(NamedTuple):
    """Describe one tensor of a safetensors file."""

    file: Path
    shape: tuple[int, ...]
    dtype: str  # safetensors' name of it


@contextlib.contextmanager
def open_tensors(path: Path) -> "Iterator[TensorFile]":
    """Open a safetensors file to read its tensors. Links are followed.

    Raises:
        OSError: it cannot be read, or is no regular file.
        SafetensorError: its header is wrong, or the file is not as long as the header says.
    """
    with path.open("rb") as file:
        yield TensorFile(path, file)


class TensorFile:
    """Read the tensors of one safetensors file.

    with open_tensors(path) as file:
        file.tensors["lm_head.weight"].shape         (512, 64)
        file.read("lm_head.weight", 0, 256)          its first rows

    Args:
        file: the open file of `path`.

    Raises:
        OSError: it cannot be read.
        SafetensorError: its header is wrong, or the file is not as long as the header says.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        size = os.fstat(file.fileno()).st_size
        length = self._header_length(size)
        header = bytes(self._read_bytes(LENGTH_BYTES, length))
        self._start = LENGTH_BYTES + length
        self._places = _places(_entries(header), size - self._start)
        self.tensors = {
            name: StoredTensor(path, tuple(entry.shape), entry.dtype) for name, entry in self._places.items()
        }

    def read(self, name: str, first: int = 0, end: int | None = None) -> "torch.Tensor":
        """Read a tensor, or its rows from number `first` to `end`, the end excluded, into memory of its own.

        Raises:
            OSError: the file cannot be read, or was cut short.
            SafetensorError: it holds no such tensor, or one of a type that torch does not have.
        """
        import torch

        entry = self._places.get(name)
        if entry is None:
            raise SafetensorError(f"it holds no tensor {name}")
        if entry.dtype not in TORCH_DTYPES:
            raise SafetensorError(f"{name} is of type {entry.dtype}; {', '.join(TORCH_DTYPES)} are supported")
        shape = entry.shape
        start, stop = entry.data_offsets
        if end is not None:
            row_bytes = math.prod(shape[1:]) * ITEM_BYTES[entry.dtype]
            shape = [end - first, *shape[1:]]
            start, stop = start + first * row_bytes, start + end * row_bytes
        values = torch.empty(stop - start, dtype=torch.uint8)
        self._read_into(values.numpy().data, self._start + start)
        dtype: torch.dtype = getattr(torch, TORCH_DTYPES[entry.dtype])
        return values.view(dtype).view(shape)

    def _header_length(self, size: int) -> int:
        if size < LENGTH_BYTES:
            raise SafetensorError(f"it has {size} bytes, too few for a header")
        length = int.from_bytes(self._read_bytes(0, LENGTH_BYTES), "little")
        if length > min(MOST_HEADER, size - LENGTH_BYTES):
            raise SafetensorError(
                f"its header would have {length} bytes, and it has {size}: it is damaged or cut short"
            )
        return length

    def _read_bytes(self, start: int, count: int) -> bytearray:
        values = bytearray(count)
        self._read_into(memoryview(values), start)
        return values

    def _read_into(self, place: memoryview, start: int) -> None:
        """Fill `place` with the bytes of the file from number `start` on."""
        done = 0
        while done < len(place):  # the system reads at most 2 GiB at once
            count = os.preadv(self._file.fileno(), [place[done:]], start + done)
            if count == 0:
                raise OSError(errno.EIO, f"it ends after {start + done} bytes: it was cut short", str(self._path))
            done += count


def _entries(header: bytes) -> dict[str, _Entry]:
    """Decode a header.

    Raises:
        SafetensorError: it is none.
    """
    try:
        found: dict[str, Raw] = msgspec.json.decode(header, type=dict[str, Raw])
        msgspec.json.decode(found.pop(METADATA, Raw(b"null")), type=dict[str, str] | None)  # as the library wants it
        return {name: msgspec.json.decode(entry, type=_Entry) for name, entry in found.items()}
    except (ValueError, RecursionError) as error:
        raise SafetensorError(f"its header cannot be read ({error})") from error


def _places(entries: dict[str, _Entry], num_bytes: int) -> dict[str, _Entry]:
    """Check that tensors lie one behind the other, each in the size of its shape, and fill the `num_bytes`.

    Raises:
        SafetensorError: they do not.
    """
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        begin, stop = entry.data_offsets
        if math.prod(filter(None, entry.shape)) > MOST_ITEMS:  # torch multiplies before it looks for an axis of 0
            raise SafetensorError(f"{name} has shape {entry.shape}, which is too large")
        if begin != end or stop < begin:
            raise SafetensorError(f"its header places {name} at {begin} to {stop}, and {end} comes next")
        item = ITEM_BYTES.get(entry.dtype)
        if item is not None and stop - begin != math.prod(entry.shape) * item:
            raise SafetensorError(f"{name} has shape {entry.shape} of {entry.dtype}, and {stop - begin} bytes")
        end = stop
    if end != num_bytes:
        raise SafetensorError(f"its header describes {end} bytes, and {num_bytes} follow: it is damaged or cut short")
    return entries
