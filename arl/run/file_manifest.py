"""Seal a directory with a list of its files, so that any change of them is noticed before they are used.

    manifest.json    {"files":      {"config.json": {"bytes": 612, "sha256": "…"}, …},   all others in the directory
                      "counted_on": {"metrics.jsonl": {"bytes": 5120, "sha256": "…"}, …}, outside, up to so many bytes
                      "sha256":     "…"}                                                  of the two above

The sums say whether the files are those that were written. They are no signature: whoever may write to the directory
can write others. So names are checked as well, and no file outside is opened because a manifest names it.
"""

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
from msgspec import Meta, Struct

from arl.errors import DataError, InputError
from arl.files import decode_json, find_below, open_regular, read_regular

MANIFEST = "manifest.json"
MANIFEST_BYTES = 64 << 20  # a run of a million steps counts on 50,000 files, each of 150 bytes here
PIECE_BYTES = 1 << 20
NOT_THERE = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENXIO,
    errno.EINVAL,
    errno.EFBIG,
}


class FileSum(Struct, frozen=True, forbid_unknown_fields=True):
    """Hold the size of a file, or of its beginning, and the sum of so many bytes."""

    bytes: Annotated[int, Meta(ge=0)]
    sha256: str


class Manifest(Struct, frozen=True, forbid_unknown_fields=True):
    """Hold what manifest.json says. Names have / between folders."""

    files: dict[str, FileSum]
    counted_on: dict[str, FileSum] = {}
    sha256: str = ""

    def encode(self) -> bytes:
        """Return the content of manifest.json: the only bytes that stand for these sums."""
        body = msgspec.json.encode((self.files, self.counted_on))
        summed = msgspec.structs.replace(self, sha256=hashlib.sha256(body).hexdigest())
        return msgspec.json.format(msgspec.json.encode(summed))


@contextlib.contextmanager
def reading(place: str) -> Iterator[None]:
    """Tell what is damaged, of which an older copy may do, from what its disk does not give, which may be whole.

    Args:
        place: begins the message.

    Raises:
        DataError: what is read is not there, or is something else.
        InputError: it cannot be read.
    """
    try:
        yield
    except OSError as error:
        why = f"{place} cannot be read ({error.strerror})"
        if error.errno in NOT_THERE:
            raise DataError(why) from error
        raise InputError(f"{why}: it may be whole; see that its disk works and may be read by this user") from error


def write_manifest(directory: Path, counted_on: Mapping[str, FileSum] | None = None) -> None:
    """List all files of a directory in its manifest.json.

    Raises:
        OSError: one cannot be read, or the manifest cannot be written.
    """
    files = {}
    for path in find_below(directory, strict=True):
        if os.path.isfile(path):
            files[path.relative_to(directory).as_posix()] = sum_file(path)
    manifest = Manifest(files, dict(counted_on or {}))
    (directory / MANIFEST).write_bytes(manifest.encode())


def read_manifest(directory: Path) -> Manifest:
    """Read manifest.json.

    Raises:
        DataError: there is none, or it is not as it was written.
        InputError: it cannot be read.
    """
    with reading(f"{directory}: {MANIFEST}"):
        data = read_regular(directory / MANIFEST, MANIFEST_BYTES)
    try:
        manifest: Manifest = decode_json(data, Manifest)
    except msgspec.DecodeError as error:
        raise DataError(f"{directory}: no {MANIFEST} that can be read ({error})") from error
    for name in (*manifest.files, *manifest.counted_on):
        if not _is_plain(name):
            raise DataError(f"{directory}: {MANIFEST} names {name!r}, which is no file below a directory")
    if manifest.encode() != data:
        raise DataError(f"{directory}: {MANIFEST} is corrupt: its own sha256 is another")
    return manifest


def check_files(directory: Path, manifest: Manifest) -> None:
    """Check that a directory holds what its manifest lists, byte for byte, and nothing else.

    Raises:
        DataError: a file is missing, too many, torn, altered or no regular file; names it.
        InputError: one cannot be read.
    """
    folders = {""}
    for name in manifest.files:
        parts = name.split("/")
        folders.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
    for folder in sorted(folders):
        _refuse_others(directory, folder, manifest, folders)
    for name, expected in manifest.files.items():
        compare(f"{directory}: {name}", directory / name, expected, whole=True)


def compare(place: str, file: Path, expected: FileSum, whole: bool) -> None:
    """Check one file, or its beginning.

    Args:
        place: begins the message.
        whole: nothing follows after the bytes that are summed.

    Raises:
        DataError: it is missing, torn or altered.
        InputError: it cannot be read.
    """
    with reading(place):
        size = file.stat().st_size
        if size < expected.bytes or (whole and size > expected.bytes):
            raise DataError(f"{place} is torn: it has {size} bytes, and {expected.bytes} were written")
        found = sum_file(file, expected.bytes)
    if found != expected:
        raise DataError(f"{place} is corrupt: its sha256 is not that of {MANIFEST}")


def sum_file(file: Path, most_bytes: int | None = None) -> FileSum:
    """Return size and sum of a regular file, or of its first `most_bytes`.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    with open_regular(file) as stream:
        size = os.fstat(stream.fileno()).st_size if most_bytes is None else most_bytes
        done = _add_to(digest, stream, size)
    return FileSum(done, digest.hexdigest())


def refuse_links(place: str, directory: Path, name: str) -> None:
    """Refuse a file below a directory that is a link, or lies behind one: what is written to it would be elsewhere.

    Args:
        place: begins the message.

    Raises:
        DataError: it is, or is not there; names the link.
        InputError: it cannot be looked at.
    """
    parts = name.split("/")
    for depth in range(1, len(parts) + 1):
        path = directory.joinpath(*parts[:depth])
        is_last = depth == len(parts)
        with reading(f"{place}: {path}"):
            mode = path.lstat().st_mode
        if not (stat.S_ISREG(mode) if is_last else stat.S_ISDIR(mode)):
            kind = "regular file" if is_last else "folder"
            raise DataError(f"{place}: {path} is a link, or no {kind}; put there what belongs there")


class GrowingSums:
    """Sum files of one directory that only grow, or never change once they are complete. Each byte is read once.

    Args:
        known: sums of complete files, which are not read again.
    """

    def __init__(self, directory: Path, known: Mapping[str, FileSum]) -> None:
        self._directory = directory
        self._complete = dict(known)
        self._growing: dict[str, tuple[hashlib._Hash, int]] = {}

    def complete(self, name: str) -> FileSum:
        """Return the sum of a file that is complete.

        Raises:
            OSError: it cannot be read.
        """
        if name not in self._complete:
            self._complete[name] = sum_file(self._directory / name)
        return self._complete[name]

    def beginning(self, name: str, size: int) -> FileSum:
        """Return the sum of the first `size` bytes of a file, at least as many as in the last call.

        Raises:
            OSError: it cannot be read, or is shorter.
        """
        digest, done = self._growing.get(name, (hashlib.sha256(), 0))
        with open_regular(self._directory / name) as file:
            file.seek(done)
            done += _add_to(digest, file, size - done)
        self._growing[name] = digest, done
        if done != size:
            raise OSError(f"{self._directory / name} has {done} bytes, and {size} were written")
        return FileSum(done, digest.hexdigest())


def _add_to(digest: "hashlib._Hash", stream: BinaryIO, size: int) -> int:
    """Add up to `size` bytes of a stream to a sum; return how many there were."""
    done = 0
    while piece := stream.read(min(PIECE_BYTES, size - done)):
        digest.update(piece)
        done += len(piece)
    return done


def _refuse_others(directory: Path, folder: str, manifest: Manifest, folders: set[str]) -> None:
    """Refuse a file that the manifest does not list, and what is listed and is no regular file.

    Raises:
        DataError: names it.
        InputError: the folder cannot be read.
    """
    with reading(f"{directory}: {folder or 'its folder'}"), os.scandir(directory / folder) as entries:
        modes = {entry.name: entry.stat(follow_symlinks=False).st_mode for entry in entries}
    for entry, mode in sorted(modes.items()):
        name = f"{folder}/{entry}" if folder else entry
        if name in folders:
            if not stat.S_ISDIR(mode):
                raise DataError(f"{directory}: {name} is no directory")
        elif name not in manifest.files and name != MANIFEST:
            raise DataError(f"{directory}: {name} is in the way: {MANIFEST} does not list it")
        elif not stat.S_ISREG(mode):
            raise DataError(f"{directory}: {name} is no regular file")


def _is_plain(name: str) -> bool:
    """Return whether a name is that of a file below a directory: relative, and without steps up."""
    parts = name.split("/")
    return "\0" not in name and all(part not in ("", ".", "..") for part in parts)
