"""Read files and values that somebody else wrote, so that nothing but the documented error comes of it.

Opening a FIFO waits for a writer, a device may never end, and a name may hold what no file system can. msgspec raises
other errors than its own for bad UTF-8 and deep nesting. Every reader of what comes from outside goes through here.

Whether something is there is asked with os.path.exists, isfile, isdir and islink: pathlib's methods, its globs too,
raise for a link that leads to a name too long. A link that leads nowhere and one that cannot be followed are alike.
"""

import errno
import fnmatch
import glob
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from arl.errors import InputError

Value = TypeVar("Value")

PIECE_BYTES = 1 << 20


def require_directory(path: Path, remedy: str) -> None:
    """Check that a path names a directory, before anything in it is looked up.

    Raises:
        InputError: it does not, or it cannot be looked at; ends with `remedy`.
    """
    try:
        is_directory = stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL, which no name holds
        is_directory = False
    except OSError as error:
        raise InputError(f"{path}: cannot be looked at ({error.strerror}); {remedy}") from error
    if not is_directory:
        raise InputError(f"{path}: is no directory; {remedy}")


def find(directory: Path, pattern: str) -> list[Path]:
    """Return what a directory has under names of a pattern like `*/summary.json`, sorted.

    What cannot be looked at is not found, as is a link that leads nowhere if something is looked for below it.
    """
    names = glob.glob(pattern, root_dir=directory, include_hidden=True)
    return sorted(directory / name for name in names)


def find_below(directory: Path, pattern: str = "*", strict: bool = False) -> list[Path]:
    """Return files, links and folders of a directory and of folders below it whose names match a pattern, sorted.

    Links are not followed, so that one that leads back up does no harm.

    Args:
        strict: nothing may be left out. Otherwise a folder that cannot be listed is as good as empty.

    Raises:
        OSError: a folder cannot be listed, and `strict`.
    """

    def refuse(error: OSError) -> None:
        if strict:
            raise error

    found: list[Path] = []
    for folder, folders, files in os.walk(directory, onerror=refuse):
        names = fnmatch.filter([*folders, *files], pattern)
        found += (Path(folder, name) for name in names)
    return sorted(found)


def may_be_folder(path: Path) -> bool:
    """Return whether a folder can be made here, or is here already. A link to one is one."""
    return not os.path.lexists(path) or os.path.isdir(path)


def may_be_file(path: Path) -> bool:
    """Return whether a file can be written here: there is a regular one, or nothing. A link would lead elsewhere."""
    return not os.path.lexists(path) or (os.path.isfile(path) and not os.path.islink(path))


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read it, if it is a regular one. Links are followed.

    Raises:
        OSError: it cannot be opened, is no regular file, or no file can have that name.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # NUL, half a surrogate pair
        raise OSError(errno.EINVAL, f"no file can have this name ({error})", ascii(str(path))) from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Read a whole regular file of at most `most_bytes`.

    Raises:
        OSError: as `open_regular`, or the file is larger (EFBIG).
    """
    too_large = OSError(errno.EFBIG, f"it is larger than {most_bytes} bytes", str(path))
    data = bytearray()
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > most_bytes:
            raise too_large
        while piece := file.read(min(PIECE_BYTES, most_bytes + 1 - len(data))):  # a large bound takes no memory
            data += piece
    if len(data) > most_bytes:  # it has grown meanwhile
        raise too_large
    return bytes(data)


def decode_json(data: bytes | bytearray | str, kind: type[Value] | Any = Any) -> Value:
    """Decode a value from JSON.

    Raises:
        msgspec.DecodeError: it is none, or none of this kind.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (UnicodeError, RecursionError) as error:
        raise msgspec.DecodeError(_what_is_wrong(error)) from None


def decode_msgpack(data: bytes, kind: type[Value] | Any = Any) -> Value:
    """Decode a value from msgpack.

    Raises:
        msgspec.DecodeError: it is none, or none of this kind.
    """
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (UnicodeError, RecursionError) as error:
        raise msgspec.DecodeError(_what_is_wrong(error)) from None


def decode_with(decoder: "msgspec.json.Decoder[Value] | msgspec.msgpack.Decoder[Value]", data: bytes) -> Value:
    """Decode a value by a decoder that is kept, because making one takes longer than a message.

    Raises:
        msgspec.DecodeError: it is none, or none of the decoder's kind.
    """
    try:
        return decoder.decode(data)
    except (UnicodeError, RecursionError) as error:
        raise msgspec.DecodeError(_what_is_wrong(error)) from None


def depth_of(value: Any) -> int:
    """Return how many lists and objects are inside each other in a decoded value, at most.

    >>> depth_of({"a": [1, [2]]}), depth_of(7)
    (3, 0)
    """
    depth = 0
    level = [value]
    while containers := [inner for inner in level if isinstance(inner, dict | list)]:
        depth += 1
        level = [part for inner in containers for part in (inner.values() if isinstance(inner, dict) else inner)]
    return depth


def _what_is_wrong(error: UnicodeError | RecursionError) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else f"it is no UTF-8 ({error})"
