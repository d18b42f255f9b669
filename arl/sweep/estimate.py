"""Estimate how long a sweep takes, from runs that are finished.

Seconds are real ones, also in world virtual, and of runs that nothing interrupted.
"""

import json
import os
import statistics
from pathlib import Path

from msgspec import Struct

from arl.config.recipe import Recipe
from arl.config.recipe_file import differences, read_with_places
from arl.errors import RecipeError
from arl.files import find
from arl.metrics.run_files import RECIPE, SUMMARY
from arl.sweep.sweep_directory import LOGS, SweepRun

TIMES = "times.jsonl"
GROWING = ("checkpoints/step_*", "evaluations/*", "trajectories/*")  # what a run adds to its directory as it goes on
NEWEST = 20  # runs in the output directory that are compared with the recipe


class TimeEstimate(Struct, frozen=True):
    """Hold the mean seconds of a run, and what they were measured on."""

    seconds_per_run: float
    source: str

    def total(self, num_runs: int, jobs: int) -> float:
        """Return the seconds of `num_runs` runs, `jobs` at a time."""
        rounds = -(-num_runs // jobs)
        return rounds * self.seconds_per_run


def record_time(run: SweepRun, seconds: float) -> None:
    """Keep the seconds of a run that nothing interrupted."""
    with (run.sweep / LOGS / TIMES).open("a") as file:
        file.write(json.dumps({"run": run.relative, "seconds": round(seconds, 3)}) + "\n")


def recorded_times(sweep: Path) -> list[float]:
    """Return the seconds of the sweep's finished runs. A half-written line, of a sweep that was killed, is left out."""
    try:
        lines = (sweep / LOGS / TIMES).read_text().split("\n")[:-1]
    except (FileNotFoundError, NotADirectoryError):  # the sweep begins, or cannot, which whoever makes its folder says
        return []
    seconds = {}
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        seconds[record["run"]] = float(record["seconds"])
    return list(seconds.values())


def estimate(sweep: Path, base: Recipe) -> TimeEstimate | None:
    """Estimate from the sweep's own runs, or else from a run of the same recipe beside it; None: there is neither."""
    times = recorded_times(sweep)
    if times:
        return TimeEstimate(statistics.fmean(times), f"{len(times)} finished runs of this sweep")
    return _like_a_run_beside(sweep.parent, base)


def _like_a_run_beside(directory: Path, base: Recipe) -> TimeEstimate | None:
    summaries = sorted(find(directory, f"*/{SUMMARY}"), key=lambda file: file.stat().st_mtime, reverse=True)
    wanted = base.model_dump(mode="json")
    for summary in summaries[:NEWEST]:
        file = summary.with_name(RECIPE)
        if not os.path.exists(file) or _was_resumed(file) or not _is_same(file, wanted):
            continue
        seconds = summary.stat().st_mtime - file.stat().st_mtime  # written at its end, and at its beginning
        return TimeEstimate(seconds, f"the run {summary.parent}")
    return None


def _was_resumed(recipe: Path) -> bool:
    """Return whether a run was resumed: each process of a run writes its recipe, and the first one before all else."""
    written = recipe.stat().st_mtime
    added = (file for pattern in GROWING for file in find(recipe.parent, pattern))
    return any(file.stat().st_mtime < written for file in added)


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
