"""Name the files of a run, open those that a resumed run cuts back and goes on with, and read metrics.jsonl."""

import json
import os
from pathlib import Path
from typing import Any, TextIO

import msgspec
from msgspec import Struct

from arl.errors import DataError, InputError
from arl.files import writing
from arl.metrics.names import Record

# Names in a run directory.
METRICS_FILE = "metrics.jsonl"
TRAJECTORIES = "trajectories"
TRACE_FILE = "trace.json"
LOGS = "logs"  # directory
ENV_LOG = f"{LOGS}/env.log"  # what envs and filters raised; made when something is to be written
RECIPE = "recipe.yaml"
GIT_COMMIT = "# git commit "  # begins its first line, where the run was started in a repository
LOCK = "run.lock"
BASE_MODEL = "base"  # a link to version 0, if the run reads it again
SUMMARY = "summary.json"
SWEEP_MANIFEST = "sweep.json"  # in the directory of a sweep, whose runs are at <arm>/<run>


class SweepManifest(Struct, frozen=True, kw_only=True):
    """Hold a sweep.

    Args:
        recipe: what all arms have in common, resolved: the sweep's recipe without the settings of an arm.
        arms: name -> the settings that make the arm, as in {"rollout.staleness": 8}.
    """

    recipe: dict[str, Any]
    arms: dict[str, dict[str, Any]]


_DECODER = json.JSONDecoder(parse_int=float, parse_constant=lambda name: None)  # Python writes NaN


def open_at(path: Path, size: int, buffering: int = 1) -> TextIO:
    """Open a file to append to its first `size` bytes, and cut off what comes after them.

    Raises:
        InputError: the file is shorter.
        DiskError: it cannot be opened.
    """
    with writing(path):
        file = path.open("a", buffering=buffering)
    found = file.tell()
    if found < size:
        file.close()
        raise InputError(f"{path}: {found} bytes, and the checkpoint counts on {size}; resume from an older one")
    file.truncate(size)
    return file


def flushed_size(file: TextIO) -> int:
    """Hand everything to the operating system and return the size of the file, bytes.

    Raises:
        DiskError: it cannot be written.
    """
    with writing(Path(file.name)):
        file.flush()
    return os.fstat(file.fileno()).st_size


def close_written(file: TextIO) -> None:
    """Close a file that was written to. It is closed also if its last bytes cannot be written.

    Raises:
        DiskError: they cannot.
    """
    with writing(Path(file.name)):
        file.close()


def read_records(path: Path) -> list[Record]:
    """Read the records of metrics.jsonl, each number as a float and NaN as None; none if there is no file.

    A last line that has no end is being written, and left out.

    Raises:
        DataError: a line holds no record.
    """
    if not path.exists():
        return []
    rows: list[Record] = []
    *lines, _ = path.read_bytes().split(b"\n")
    try:
        rows.extend(_DECODER.decode(line.decode()) for line in lines)
    except ValueError as error:
        raise DataError(f"{path}: cannot be read after {len(rows)} lines ({error})") from error
    return rows


def read_manifest(path: Path) -> SweepManifest:
    """Read the manifest of a sweep.

    Raises:
        DataError: it is damaged.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=SweepManifest)
    except msgspec.DecodeError as error:
        raise DataError(f"{path}: is damaged ({error}); remove it, the next `arl sweep` writes it anew") from error
