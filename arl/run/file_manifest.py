"""List the files of a directory in its manifest.json, so that one that is torn or altered is noticed before it is used.

manifest.json    {"config.json": {"bytes": 612, "sha256": "…"}, "weights/v3/model.safetensors": …}
"""

import hashlib
from pathlib import Path

import msgspec
from msgspec import Struct

from arl.errors import DataError, InputError

MANIFEST = "manifest.json"


class FileSum(Struct, frozen=True):
    """Hold the size of a file and its sum."""

    bytes: int
    sha256: str


def write_manifest(directory: Path) -> None:
    """List all files below a directory in its manifest.json.

    Raises:
        OSError: one cannot be read, or the manifest cannot be written.
    """
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    sums = {path.relative_to(directory).as_posix(): _sum(path) for path in files}
    (directory / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(sums)))


def check_files(directory: Path) -> None:
    """Check that a directory holds what its manifest lists, byte for byte.

    Raises:
        DataError: a file is missing, torn or altered; names it.
        InputError: a file is there and cannot be read.
    """
    try:
        sums = msgspec.json.decode((directory / MANIFEST).read_bytes(), type=dict[str, FileSum])
        for name, expected in sums.items():
            _compare(directory, name, expected)
    except (FileNotFoundError, ValueError) as error:
        raise DataError(f"{directory}: {MANIFEST} cannot be read ({error})") from error
    except OSError as error:
        raise InputError(f"{directory} cannot be read ({error}); it may be whole: see that its disk works") from error


def _compare(directory: Path, name: str, expected: FileSum) -> None:
    file = directory / name
    if not file.is_file():
        raise DataError(f"{directory}: {name} is missing")
    size = file.stat().st_size
    if size != expected.bytes:
        raise DataError(f"{directory}: {name} is torn: it has {size} bytes, and {expected.bytes} were written")
    if _sum(file) != expected:
        raise DataError(f"{directory}: {name} is corrupt: its sha256 is not that of {MANIFEST}")


def _sum(file: Path) -> FileSum:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
        return FileSum(stream.tell(), digest.hexdigest())
