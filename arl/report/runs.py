"""Read runs from their directories, whether they are finished, running or dead. Nothing is locked and nothing written.

paths ─► run directories ─► recipe.yaml, metrics.jsonl ─► LoadedRun, and a line for everything that is left out
"""

import itertools
import math
import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Struct

from arl.config.recipe_file import leaves
from arl.config.yaml_loader import YamlError, read_document
from arl.errors import DataError, InputError
from arl.files import is_locked
from arl.metrics.names import AGE_BUCKETS, OF_EVALUATION, Record, number
from arl.metrics.run_files import (
    GIT_COMMIT,
    LOCK,
    METRICS_FILE,
    RECIPE,
    SUMMARY,
    SWEEP_MANIFEST,
    read_manifest,
    read_records,
)
from arl.metrics.run_status import STATUS_FILE

RunStatus = Literal["finished", "running", "stopped"]
OF_A_STEP = "tokens/trained"  # every record of a step has it; evaluations are records of their own
ACCURACY = "/accuracy"
REMEDY = "give directories of runs or of a sweep, like runs/quickstart"


class LoadedRun(Struct, frozen=True, kw_only=True):
    """Hold what a run has recorded so far. What was not recorded is NaN, never 0."""

    name: str  # its path below what the user gave, without the path above
    directory: Path
    recipe: dict[str, Any]  # section.field -> value
    status: RunStatus
    steps: np.ndarray  # (steps,) int
    columns: dict[str, np.ndarray]  # metric -> (steps,) float; a list by age bucket -> (steps, 7) float
    scores: dict[str, dict[int, float]]  # suite -> version that was measured, in order -> accuracy
    problems: dict[str, float] = {}  # suite -> how many an evaluation has
    facts: dict[str, str] = {}  # recipe, model, task, commit, date of the last status; "": not known
    selection_bias: list[str] = []  # lines of its summary

    @property
    def seed(self) -> int:
        """Return the seed of the recipe."""
        seed: int = self.recipe.get("seed", 0)
        return seed

    @property
    def last_step(self) -> int:
        """Return the last step that was recorded."""
        return int(self.steps[-1])

    def number(self, metric: str) -> np.ndarray:
        """Return a metric, (steps,) float; all NaN if it was never recorded."""
        return self.columns.get(metric, np.full(len(self.steps), np.nan))

    def mean(self, metric: str) -> float:
        """Return the mean of a metric over the steps that recorded it; NaN if none did."""
        values = self.number(metric)
        measured = values[np.isfinite(values)]
        return float(measured.mean()) if len(measured) else math.nan

    def last(self, metric: str) -> float:
        """Return the last number that was recorded of a metric; NaN if none was."""
        values = self.number(metric)
        measured = values[~np.isnan(values)]
        return float(measured[-1]) if len(measured) else math.nan


def load_runs(paths: Sequence[Path]) -> tuple[list[LoadedRun], list[str]]:
    """Read every run that `paths` name, or that lies below them; also return a line for each that is left out.

    Raises:
        InputError: a path does not exist, has no run below it, or none of the runs has finished a step.
    """
    notes: list[str] = []
    loaded = [_load(name, directory, notes) for directory, name in find_runs(paths).items()]
    runs = [run for run in loaded if run is not None]
    if not runs:
        raise InputError("\n".join(notes))
    return runs, notes


def find_runs(paths: Sequence[Path]) -> dict[Path, str]:
    """Map each run directory to a name that says which it is. A directory above runs stands for all of them.

    Raises:
        InputError: a path names no directory, or has no run below it.
    """
    found: dict[Path, str] = {}
    for path in paths:
        if not path.is_dir():
            raise InputError(f"{path}: is no directory; {REMEDY}")
        top = path.resolve()
        directories = sorted(_run_directories(top))
        if not directories:
            raise InputError(f"{path}: no run in it or below; {REMEDY}")
        for directory in directories:
            found.setdefault(directory, (top.name / directory.relative_to(top)).as_posix())
    if len(set(found.values())) < len(found):  # then names begin where their paths part
        common = os.path.commonpath(found)
        return {directory: directory.relative_to(common).as_posix() for directory in found}
    return found


def _run_directories(path: Path) -> Iterator[Path]:
    """Find runs, which have a recipe or metrics; nothing inside a run is searched."""
    for directory, folders, files in os.walk(path):
        if RECIPE in files or METRICS_FILE in files:
            folders.clear()
            yield Path(directory)


def _load(name: str, directory: Path, notes: list[str]) -> LoadedRun | None:
    """Read one run; None, with a note, if it has nothing to compare."""
    try:
        written = (directory / RECIPE).read_bytes()
        recipe = dict(leaves(read_document(written).values))
        rows = read_records(directory / METRICS_FILE)
        summary = _read_json(directory / SUMMARY)
        status_file = _read_json(directory / STATUS_FILE)
    except (OSError, YamlError, DataError) as error:
        notes.append(
            f"{name}: {RECIPE}, {METRICS_FILE}, {SUMMARY} or {STATUS_FILE} cannot be read ({error}); it is left out"
        )
        return None
    status: RunStatus = "running" if is_locked(directory / LOCK) else "stopped"
    if summary:
        status = "finished"
    steps = [row for row in rows if OF_A_STEP in row]
    if not steps:
        notes.append(f"{name}: no step is finished yet ({status}); it is left out")
        return None
    return LoadedRun(
        name=name,
        directory=directory,
        recipe=recipe,
        status=status,
        steps=np.array([number(row, "step") for row in steps], dtype=np.int64),
        columns=_columns(steps),
        scores=_scores(rows, ACCURACY),
        problems={suite: max(counts.values()) for suite, counts in _scores(rows, "/problems").items()},
        facts=_facts(directory, recipe, written) | {"date": _date(status_file)},
        selection_bias=summary.get("selection_bias", []),
    )


def _facts(directory: Path, recipe: dict[str, Any], written: bytes) -> dict[str, str]:
    """Read what a report's title says. A run of a sweep is named after its seed; the manifest names its recipe."""
    manifest = directory.parent.parent / SWEEP_MANIFEST
    named = read_manifest(manifest).recipe if manifest.exists() else recipe
    return {
        "recipe": str(named.get("name", "")),
        "model": str(recipe.get("model.path") or "tiny"),
        "task": _sources(recipe),
        "commit": written.decode().partition("\n")[0].partition(GIT_COMMIT)[2],
    }


def _sources(recipe: dict[str, Any]) -> str:
    """Name the tasks or files that a run has trained on."""
    one = {"task": recipe.get("data.task"), "path": recipe.get("data.path")}
    return ", ".join(str(source["task"] or source["path"] or "") for source in recipe.get("data", [one]))


def _date(status: dict[str, Any]) -> str:
    """Return the day on which a run last wrote its status; "" in virtual time, which has no days."""
    return f"{datetime.fromtimestamp(status['time']):%Y-%m-%d}" if status else ""


def _read_json(path: Path) -> dict[str, Any]:
    """Read an object; an empty one if there is no file."""
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise DataError(f"{path}: is damaged ({error})") from error


def _columns(rows: Sequence[Record]) -> dict[str, np.ndarray]:
    """Turn records into columns, in which None is NaN. Histograms are left out, because no section shows them."""
    columns: dict[str, np.ndarray] = {}
    nothing = [None] * len(AGE_BUCKETS)
    for name in dict.fromkeys(itertools.chain.from_iterable(rows)):
        if name.endswith("/histogram"):
            continue
        values = [row.get(name) for row in rows]
        is_by_age = any(isinstance(value, list) for value in values)
        columns[name] = np.array([value or nothing for value in values] if is_by_age else values, dtype=np.float64)
    return columns


def _scores(rows: Sequence[Record], ending: str) -> dict[str, dict[int, float]]:
    """Map each suite to what its metric of that ending was, by version."""
    found: dict[str, dict[int, float]] = {}
    for row in sorted(rows, key=lambda row: number(row, "policy_version")):
        for name in row:
            if name.startswith(OF_EVALUATION) and name.endswith(ending):
                suite = name.removeprefix(OF_EVALUATION).removesuffix(ending)
                found.setdefault(suite, {})[int(number(row, "policy_version"))] = number(row, name)
    return found
