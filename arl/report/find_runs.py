"""Find the directories of runs, and give each a name.

A run directory is recognized by recipe.yaml or metrics.jsonl. A directory above runs, such as a sweep's, stands for all
of them.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from arl.errors import InputError
from arl.metrics.run_files import METRICS_FILE, RECIPE

REMEDY = "give directories of runs or of a sweep, like runs/quickstart"


def find_runs(paths: Sequence[Path], notes: list[str]) -> list[tuple[str, Path]]:
    """Return each run directory once, with a name that says which it is.

    Args:
        notes: gets a line for each directory that cannot be read.

    Raises:
        InputError: a path names no directory, or has no run below it.
    """
    found: dict[Path, str] = {}
    for path in paths:
        if not os.path.isdir(path):
            raise InputError(f"{path}: is no directory; {REMEDY}")
        unreadable: list[OSError] = []
        directories = sorted(_run_directories(path, unreadable))
        closed = [_cannot_be_read(path, error) for error in unreadable]

        if not directories:
            lines = [*closed, f"{path}: no run in it or below; {REMEDY}"]
            raise InputError("\n".join(lines))

        notes += [f"{line}; runs in it are left out" for line in closed]
        for directory in directories:
            name = _below(path, directory)
            real = Path(os.path.realpath(directory))
            found.setdefault(real, name)
    return _with_unique_names(found)


def _with_unique_names(found: dict[Path, str]) -> list[tuple[str, Path]]:
    """Return each directory with a name that no other one has."""
    by_name: dict[str, list[Path]] = {}
    for directory, name in found.items():
        namesakes = by_name.setdefault(name, [])
        namesakes.append(directory)

    named = []
    for directory, name in found.items():
        unique = _unique(directory, name, by_name[name])
        named.append((unique, directory))
    return named


def _unique(directory: Path, name: str, namesakes: Sequence[Path]) -> str:
    """Put parents in front of a name until no other run has it."""
    length = len(Path(name).parts)
    while len(namesakes) > 1 and length < len(directory.parts) - 1:
        length += 1
        tails = {path.parts[-length:] for path in namesakes}
        if len(tails) == len(namesakes):
            break
    return "/".join(directory.parts[-length:]).encode("utf-8", "replace").decode()


def _below(path: Path, directory: str | Path) -> str:
    """Name a directory by its path from the last part of `path` on."""
    top = Path(os.path.realpath(path))
    below = Path(os.path.realpath(directory)).relative_to(top)
    name = (Path(top.name) / below).as_posix()
    return name.encode("utf-8", "replace").decode()  # a path that is no UTF-8 has half characters


def _cannot_be_read(path: Path, error: OSError) -> str:
    place = _below(path, error.filename)
    return f"{place}: cannot be read ({error.strerror})"


def _run_directories(path: Path, unreadable: list[OSError]) -> Iterator[Path]:
    """Find runs; nothing inside a run is searched. `unreadable` gets an error for each directory that is closed."""

    def note(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):  # such a path holds no runs
            unreadable.append(error)

    for directory, folders, files in os.walk(path, onerror=note):
        if RECIPE in files or METRICS_FILE in files:
            folders.clear()
            yield Path(directory)
