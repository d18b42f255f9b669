"""Read runs from their directories, whether they are finished, running or dead. Nothing is locked and nothing written.

paths ─► run directories ─► recipe.yaml, metrics.jsonl ─► LoadedRun, and a line for everything that is left out
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Struct

from arl.config.recipe_file import leaves
from arl.config.yaml_loader import YamlError, read_document
from arl.errors import DataError, InputError
from arl.launch.file_lock import is_locked
from arl.metrics.names import OF_EVALUATION
from arl.metrics.record_file import Row, read_records
from arl.metrics.run_files import LOCK, METRICS_FILE, RECIPE, SUMMARY
from arl.report.find_runs import find_runs
from arl.report.metric_columns import MetricColumns, make_columns

RunStatus = Literal["finished", "running", "stopped"]
OF_A_STEP = "tokens/trained"  # every record of a step has it; evaluations are records of their own
NAMES_SHOWN = 4


class SuiteScores(Struct, frozen=True):
    """Hold the evaluations of one suite, in the order of the versions that were measured."""

    steps: np.ndarray  # (n,) int: the version that was measured
    accuracy: np.ndarray  # (n,) float


class LoadedRun(Struct, frozen=True, kw_only=True):
    """Hold what a run has recorded so far."""

    name: str  # its path below what the user gave, without the path above
    directory: Path
    recipe: dict[str, Any]  # section.field -> value
    status: RunStatus
    columns: MetricColumns  # of its steps
    scores: dict[str, SuiteScores]  # by suite
    selection_bias: list[str] = []  # lines of its summary

    @property
    def seed(self) -> int:
        """Return the seed of the recipe."""
        seed: int = self.recipe.get("seed", 0)
        return seed

    @property
    def last_step(self) -> int:
        """Return the last step that was recorded."""
        return int(self.columns.steps[-1])


class LoadedRuns(Struct, frozen=True):
    """Hold every run that could be read, and what has to be said about the others."""

    runs: list[LoadedRun]
    notes: list[str]


def load_runs(paths: Sequence[Path]) -> LoadedRuns:
    """Read every run that `paths` name, or that lies below them.

    Raises:
        InputError: a path does not exist, has no run below it, or none of the runs has finished a step.
    """
    notes: list[str] = []
    loaded = [_load(name, directory, notes) for name, directory in find_runs(paths)]
    runs = [run for run in loaded if run is not None]
    if not runs:
        raise InputError("\n".join(notes))
    return LoadedRuns(runs, notes)


def _load(name: str, directory: Path, notes: list[str]) -> LoadedRun | None:
    """Read one run; None, with a note, if it has nothing to compare."""
    recipe = _read_recipe(name, directory, notes)
    if recipe is None:
        return None
    rows = _read_rows(directory, notes)
    steps = [row for row in rows if OF_A_STEP in row]
    status = _status(directory)
    if not steps:
        notes.append(f"{name}: no step is finished yet ({status}); it is left out")
        return None
    return LoadedRun(
        name=name,
        directory=directory,
        recipe=recipe,
        status=status,
        columns=make_columns(steps),
        scores=_scores([row for row in rows if OF_A_STEP not in row]),
        selection_bias=_selection_bias(directory),
    )


def _read_recipe(name: str, directory: Path, notes: list[str]) -> dict[str, Any] | None:
    """Read the recipe as it was written; one of another version of arl is not refused."""
    try:
        tree = read_document((directory / RECIPE).read_bytes()).values
    except OSError as error:
        notes.append(f"{name}: {RECIPE} cannot be read ({error.strerror}); it is left out")
        return None
    except YamlError:
        tree = None
    if not isinstance(tree, dict):
        notes.append(f"{name}: {RECIPE} holds no recipe, as if it were half written; it is left out")
        return None
    return dict(leaves(tree))


def _read_rows(directory: Path, notes: list[str]) -> list[Row]:
    """Read metrics.jsonl. A last line without its end is being written, and left out."""
    try:
        return read_records(directory / METRICS_FILE)
    except DataError as error:
        notes.append(str(error))
        return []


def some(names: Sequence[str], one: str, several: str) -> str:
    """Write `line 3`, or `lines 3, 4, 5, 6 and 12 more`, for the words `line` and `lines`."""
    shown = ", ".join(names[:NAMES_SHOWN])
    rest = len(names) - NAMES_SHOWN
    more = f" and {rest} more" if rest > 0 else ""
    noun = several if len(names) > 1 else one
    return f"{noun} {shown}{more}".strip()


def _scores(rows: Sequence[Row]) -> dict[str, SuiteScores]:
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        for name, value in row.items():
            if name.startswith(OF_EVALUATION) and name.endswith("/accuracy") and isinstance(value, float):
                suite = name.removeprefix(OF_EVALUATION).removesuffix("/accuracy")
                version = row.get("policy_version")
                found.setdefault(suite, {})[int(version if isinstance(version, float) else row["step"])] = value  # type: ignore[arg-type]
    scores = {}
    for suite, by_version in found.items():
        versions = sorted(by_version)
        accuracy = [by_version[version] for version in versions]
        scores[suite] = SuiteScores(np.array(versions, dtype=np.int64), np.array(accuracy))
    return scores


class _Warnings(Struct, frozen=True):
    selection_bias: list[str] = []


def _selection_bias(directory: Path) -> list[str]:
    """Read the warnings of the summary, which compare trained groups with dropped ones; none while there is none."""
    summary = directory / SUMMARY
    return msgspec.json.decode(summary.read_bytes(), type=_Warnings).selection_bias if summary.exists() else []


def _status(directory: Path) -> RunStatus:
    """Say whether a run is finished, is running, or has ended without a summary."""
    if os.path.exists(directory / SUMMARY):
        return "finished"
    return "running" if is_locked(directory / LOCK) else "stopped"
