"""Find the files that a recipe's path names: one file, a glob of them, or files of a Hugging Face data set.

data.path ─► hf://datasets/… ─► arl.data.hub_files
         └─► a glob ─► every file that it matches, by name
         └─► a file
"""

import glob
import os
from pathlib import Path

from arl.data.hub_files import PREFIX, fetch_hub_files, parse_hub_files
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
    what = f"{field} {spec}"
    files = fetch_hub_files(parse_hub_files(spec, field), field) if spec.startswith(PREFIX) else _local(spec, what)
    others = [file for file in files if file.suffix not in SUFFIXES]
    if others:
        raise DataError(f"{what}: {others[0].name} is not {', '.join(SUFFIXES)}: give jsonl or parquet files")
    return files


def _local(spec: str, what: str) -> list[Path]:
    path = Path(os.path.expanduser(spec))
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        raise DataError(f"{what}: is a directory; give a file, or a glob as in {path}/*.parquet")
    if glob.has_magic(str(path)):
        found = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if os.path.isfile(name))
        if not found:
            raise DataError(f"{what}: matches no file; looked in {Path.cwd()}")
        return found
    raise DataError(f"{what}: there is no file {path.absolute()}{_siblings(path.absolute().parent)}")


def _siblings(directory: Path) -> str:
    """Say which files lie where one was looked for."""
    if not os.path.isdir(directory):
        return f", nor a directory {directory}"
    names = sorted(name for name in os.listdir(directory) if name.endswith(SUFFIXES))
    return f"; {directory} has {', '.join(names[:8]) or 'no jsonl and no parquet'}"
