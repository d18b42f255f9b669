"""Estimate how long a sweep takes, from runs that are finished.

Seconds are real ones, also in world virtual, and of runs that nothing interrupted.
"""

import contextlib
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from arl.config.recipe import Recipe
from arl.config.recipe_file import differences, read_with_places
from arl.errors import RecipeError
from arl.metrics.run_files import RECIPE, SUMMARY
from arl.sweep.sweep_directory import SweepRun, times_file

GROWING = ("checkpoints/step_*", "evaluations/*", "trajectories/*")  # what a run adds to its directory as it goes on
MOST_SECONDS = 1e9  # of a run, thirty years
NEWEST = 20  # runs in the output directory that are compared with the recipe


class TimeEstimate(Struct, frozen=True):
    """Hold the mean seconds of a run, and what they were measured on."""

    seconds_per_run: float
    source: str

    def total(self, num_runs: int, jobs: int) -> float:
        """Return the seconds of `num_runs` runs, `jobs` at a time."""
        rounds = -(-num_runs // jobs)
        return rounds * self.seconds_per_run


class _RunTime(Struct, frozen=True):
    """Hold a line of times.jsonl: a run, relative to the sweep's directory, and its seconds."""

    run: str
    seconds: Annotated[float, Meta(ge=0, le=MOST_SECONDS)]


def record_time(run: SweepRun, seconds: float) -> None:
    """Keep the seconds of a run that nothing interrupted."""
    line = msgspec.json.encode(_RunTime(run.relative, round(seconds, 3)))
    with times_file(run.sweep).open("ab") as file:
        file.write(line + b"\n")


def recorded_times(sweep: Path, note: Callable[[str], None]) -> list[float]:
    """Return the seconds of the sweep's finished runs.

    A half-written line, of a sweep that was killed, is left out. So is what else cannot be read, which `note` is told
    once: the times serve an estimate alone.
    """
    file = times_file(sweep)
    try:
        lines = file.read_bytes().split(b"\n")[:-1]
    except (FileNotFoundError, NotADirectoryError):  # the sweep begins, or cannot, which whoever makes its folder says
        return []
    except OSError as error:
        note(f"{file}: cannot be read ({error.strerror}), so the time is estimated without it")
        return []
    seconds: dict[str, float] = {}
    num_damaged = 0
    for line in lines:
        try:
            of_run: _RunTime = msgspec.json.decode(line, type=_RunTime)
        except msgspec.DecodeError:
            num_damaged += 1
            continue
        seconds[of_run.run] = of_run.seconds
    if num_damaged:
        note(f"{file}: {num_damaged} of {len(lines)} lines hold no time of a run, and are left out of the estimate")
    return list(seconds.values())


def estimate(sweep: Path, base: Recipe, note: Callable[[str], None]) -> TimeEstimate | None:
    """Estimate from the sweep's own runs, or else from a run of the same recipe beside it; None: there is neither.

    Args:
        note: is called with one line about what cannot be read.
    """
    times = recorded_times(sweep, note)
    if times:
        return TimeEstimate(statistics.fmean(times), f"{len(times)} finished runs of this sweep")
    return _like_a_run_beside(sweep.parent, base)


def _like_a_run_beside(directory: Path, base: Recipe) -> TimeEstimate | None:
    """Take the newest run that serves. What lies beside a sweep is somebody else's, and what cannot be read is none."""
    ends = _times_written(list(directory.glob(f"*/{SUMMARY}")))
    wanted = base.model_dump(mode="json")
    for summary in sorted(ends, key=ends.__getitem__, reverse=True)[:NEWEST]:
        recipe = summary.with_name(RECIPE)
        begin = _times_written([recipe]).get(recipe)
        if begin is None or _was_resumed(recipe.parent, begin) or not _is_same(recipe, wanted):
            continue
        seconds = ends[summary] - begin  # they are written at the end of a run, and at its beginning
        if 0 <= seconds <= MOST_SECONDS:
            return TimeEstimate(seconds, f"the run {summary.parent}")
    return None


def _times_written(files: list[Path]) -> dict[Path, float]:
    """Map each file to the time of its last change, without those that cannot be looked at: links to nowhere."""
    written = {}
    for file in files:
        with contextlib.suppress(OSError):
            written[file] = file.stat().st_mtime
    return written


def _was_resumed(run: Path, begin: float) -> bool:
    """Return whether a run was resumed: each process of a run writes its recipe, and the first one before all else."""
    added = [file for pattern in GROWING for file in run.glob(pattern)]
    return any(written < begin for written in _times_written(added).values())


def _is_same(file: Path, wanted: dict[str, object]) -> bool:
    """Return whether a run was made with this recipe, whatever its name, seed and output; not if it cannot be read."""
    try:
        recorded, _ = read_with_places(file)
    except RecipeError:
        return False
    ignored = ("name", "seed", "output.", "train.dtype", "engine.dtype")  # a run's recipe has no `auto`
    return all(field.startswith(ignored) for field, _, _ in differences(recorded, wanted))


def duration(seconds: float) -> str:
    """Write seconds as people say them: 48 s, 12 min, 3 h 05 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min"
