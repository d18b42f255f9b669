"""Damage the directory of a sweep and the runs beside it, and plan and continue the sweep, up to its first process."""

import io
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from rich.console import Console

from arl.sweep.request import SweepOptions, SweepRequest, read_request
from arl.sweep.run_arms import follow_progress
from arl.sweep.run_sweep import PlannedSweep, dry_run
from arl.sweep.sweep_directory import open_directory, times_file
from arl.sweep.sweep_summary import print_results
from tests.fuzz.run_files import damage_run, record_run
from tests.fuzz.trials import Draw, Edge, Trial

SWEEP = "runs/study"
RUN = f"{SWEEP}/staleness=1/seed-0"
FILES = [
    *("sweep.json", "sweep.json", "logs/times.jsonl", "logs/times.jsonl", "logs", "recipes", "sweep.lock"),
    *("recipes/staleness=1.yaml", "recipes/staleness=2.yaml", "logs/staleness=1/seed-0.log", "logs/staleness=1"),
    *("staleness=1", "staleness=1/seed-0"),
    *(f"staleness=1/seed-0/{name}" for name in ("summary.json", "metrics.jsonl", "checkpoints", "run.lock")),
]
BESIDE = ["summary.json", "recipe.yaml", "checkpoints", "evaluations", "trajectories", "metrics.jsonl"]


@contextmanager
def prepare(folder: Path) -> Iterator[Draw]:
    """Make a sweep with one finished run of two, and a finished run beside it."""
    run = record_run(folder)
    copy = folder / "copy"
    options = SweepOptions(
        name="study",
        axes=["rollout.staleness=1,2"],
        jobs=1,
        overrides=[f"output.directory={copy / 'runs'}"],
    )
    recipe = folder / "recipe.yaml"
    _make_sweep(read_request(recipe, options))
    shutil.copytree(run, copy / RUN)
    shutil.copytree(run, copy / "runs" / "beside")
    whole = copy.rename(folder / "whole")

    def draw(random: Random) -> Trial:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(whole, copy)
        times = times_file(copy / SWEEP)
        if random.random() < 0.3:
            times.unlink()  # so that the run beside the sweep is looked at
        of_sweep = damage_run(random, copy / SWEEP, FILES)
        beside = damage_run(random, copy / "runs" / "beside", BESIDE)
        go = random.choice((_plan, _go_on))
        request = read_request(recipe, options)
        return Trial(f"{go.__name__}: {of_sweep}; beside: {beside}", lambda: go(request))

    yield draw


def _make_sweep(request: SweepRequest) -> None:
    planned = PlannedSweep(request, _console())
    with open_directory(planned.directory, planned.request, planned.checked):
        pass
    for run in planned.runs:
        run.log.parent.mkdir(parents=True)
        run.log.write_text("started\n")
    times = [json.dumps({"run": run.relative, "seconds": 2.5}) for run in planned.runs]
    times_file(planned.directory).write_text("".join(f"{line}\n" for line in times))


def _console() -> Console:
    return Console(file=io.StringIO(), width=120)


def _plan(request: SweepRequest) -> None:
    dry_run(request, _console())


def _go_on(request: SweepRequest) -> None:
    planned = PlannedSweep(request, _console())
    with open_directory(planned.directory, planned.request, planned.checked):
        assert planned.known is None or planned.known.seconds_per_run >= 0
        for run in planned.runs:
            follow_progress(run, 0.0)
        print_results(planned.runs, planned.console)


SWEEP_DIRECTORIES = Edge(prepare, trials=60)
