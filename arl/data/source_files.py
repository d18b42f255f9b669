"""Find the files that a recipe's path names: one file, a glob of them, or files of a Hugging Face data set.

data.path ─► hf://datasets/… ─► arl.data.hub_files
         └─► a glob ─► every file that it matches, by name
         └─► a file
"""

import errno
import glob
import os
import stat
from pathlib import Path

from arl.data.hub_files import PREFIX, fetch_hub_files, missing_pieces, parse_hub_files
from arl.errors import DataError

SUFFIXES = (".jsonl", ".json", ".parquet")


def find_files(spec: str, field: str) -> list[Path]:
    """Return the files in the order of their names.

    Args:
        spec: path, glob, or hf://datasets/owner/repo/glob.
        field: how messages name it, as in "data.path".

    Raises:
        DataError: there is no such file, or it is neither jsonl nor parquet; says what is there, or what fetches it.
    """
    files = _on_hub(spec, field) if spec.startswith(PREFIX) else _local(spec, field)
    missing = missing_pieces(files)
    if missing:
        raise DataError(f"{field} {spec}: {len(missing)} pieces are missing, as {missing[0]}: give all of them")
    others = [file for file in files if file.suffix not in SUFFIXES]
    if others:
        raise DataError(f"{field} {spec}: {others[0].name} is not {', '.join(SUFFIXES)}: give jsonl or parquet files")
    return files


def _on_hub(spec: str, field: str) -> list[Path]:
    return fetch_hub_files(parse_hub_files(spec, field), field)


def _local(spec: str, field: str) -> list[Path]:
    path = _expanded(spec, field)
    mode = file_mode(path, f"{field} {spec}")
    if stat.S_ISREG(mode):
        return [path]
    if stat.S_ISDIR(mode):
        raise DataError(f"{field} {spec}: is a directory; give a file, or a glob as in {path}/*.parquet")
    if mode:
        raise DataError(f"{field} {spec}: is no regular file; give one, or a glob of them")
    if glob.has_magic(str(path)):
        found = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if os.path.isfile(name))
        if not found:
            raise DataError(f"{field} {spec}: matches no file; looked in {Path.cwd()}")
        return found
    raise DataError(f"{field} {spec}: there is no file {path.absolute()}{_siblings(path)}")


def _expanded(spec: str, field: str) -> Path:
    try:
        return Path(spec).expanduser()
    except RuntimeError as error:
        raise DataError(f"{field} {spec}: {error}; write the whole path") from error


def file_mode(path: Path, what: str) -> int:
    """Return the mode of what a path names; 0: nothing is there.

    Raises:
        DataError: nobody can have a file of this name, or this user may not look there; begins with `what`.
    """
    try:
        return os.stat(path).st_mode
    except ValueError as error:  # NUL, half a surrogate pair
        raise DataError(f"{what}: no file can have this name ({error})") from None
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return 0
        raise DataError(f"{what}: cannot be looked up ({error.strerror})") from error


def _siblings(path: Path) -> str:
    """Say which files lie beside a path that does not exist."""
    parent = path.absolute().parent
    try:
        names = sorted(entry.name for entry in parent.iterdir() if entry.suffix in SUFFIXES)
    except FileNotFoundError:
        return f", nor a directory {parent}"
    except OSError as error:
        return f"; {parent} cannot be listed ({error.strerror})"
    return f"; {parent} has {', '.join(names[:8]) or 'no jsonl and no parquet'}"
