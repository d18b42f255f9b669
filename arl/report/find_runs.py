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


def find_runs(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    """Return each run directory once, with a name that says which it is.

    Raises:
        InputError: a path names no directory, has no run below it, or has one that cannot be read.
    """
    found: dict[Path, str] = {}
    for path in paths:
        if not os.path.isdir(path):
            raise InputError(f"{path}: is no directory; {REMEDY}")
        directories = sorted(_run_directories(path))
        if not directories:
            raise InputError(f"{path}: no run in it or below; {REMEDY}")
        top = Path(os.path.realpath(path))
        for directory in directories:
            real = Path(os.path.realpath(directory))
            found.setdefault(real, (top.name / real.relative_to(top)).as_posix())
    return _with_unique_names(found)


def _with_unique_names(found: dict[Path, str]) -> list[tuple[str, Path]]:
    """Return each directory with a name that no other one has."""
    by_name: dict[str, list[Path]] = {}
    for directory, name in found.items():
        by_name.setdefault(name, []).append(directory)
    return [(_unique(directory, name, by_name[name]), directory) for directory, name in found.items()]


def _unique(directory: Path, name: str, namesakes: Sequence[Path]) -> str:
    """Put parents in front of a name until no other run has it."""
    length = len(Path(name).parts)
    while len(namesakes) > 1 and length < len(directory.parts) - 1:
        length += 1
        tails = {path.parts[-length:] for path in namesakes}
        if len(tails) == len(namesakes):
            break
    return "/".join(directory.parts[-length:])


def _run_directories(path: Path) -> Iterator[Path]:
    """Find runs; nothing inside a run is searched."""

    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename}: cannot be read ({error.strerror}); {REMEDY}") from error

    for directory, folders, files in os.walk(path, onerror=refuse):
        if RECIPE in files or METRICS_FILE in files:
            folders.clear()
            yield Path(directory)
