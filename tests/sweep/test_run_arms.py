"""Each run of a sweep is a process of its own, with its share of the machine."""

import os
import sys
from pathlib import Path

import pytest
from rich.console import Console

from arl import clock
from arl.config.recipe_file import load_recipe
from arl.launch.devices import Share
from arl.sweep import run_arms
from arl.sweep.check_arms import CheckedArm
from arl.sweep.combinations import SweepArm
from arl.sweep.run_arms import ArmRunner, FailedRun
from arl.sweep.sweep_directory import SweepRun
from arl.sweep.sweep_display import SweepDisplay

TRAIN = """\
import os, pathlib, sys
import yaml
settings = dict(argument.split("=", 1) for argument in sys.argv if "=" in argument)
directory = pathlib.Path(yaml.safe_load(settings["output.directory"]), yaml.safe_load(settings["name"]))
directory.mkdir(parents=True)
(directory / "summary.json").touch()
print("cores", sorted(os.sched_getaffinity(0)))
"""


def runs_of(recipe: Path, sweep: Path, seeds: int = 1) -> list[SweepRun]:
    arm = CheckedArm(SweepArm("base", {}), load_recipe(recipe, ["world=wall"]))
    return [SweepRun(arm, seed, sweep) for seed in range(seeds)]


def runner_of(runs: list[SweepRun], shares: list[Share]) -> ArmRunner:
    return ArmRunner(runs, shares, SweepDisplay(Console(quiet=True), len(runs), 0))


def run_with(program: str, runs: list[SweepRun], share: Share, monkeypatch: pytest.MonkeyPatch) -> list[FailedRun]:
    """Run the runs with another program in the place of `arl`."""
    monkeypatch.setattr(run_arms, "PROGRAM", (sys.executable, "-c", program))
    return clock.run(runner_of(runs, [share]).run)


def test_a_run_keeps_to_the_cores_of_its_share(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = runs_of(recipe, recipe.parent / "study")
    core = max(os.sched_getaffinity(0))
    assert not run_with(TRAIN, [run], Share(cores=(core,)), monkeypatch)
    assert run.log.read_text() == f"cores [{core}]\n"


def test_a_resumed_run_that_fails_is_reported_with_the_directory_to_remove(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = runs_of(recipe, recipe.parent / "study")
    (run.directory / "checkpoints" / "step_000002").mkdir(parents=True)
    (failure,) = run_with("print('no checkpoint is intact'); exit(2)", [run], Share(), monkeypatch)
    assert f"exited with code 2: no checkpoint is intact; log {run.log}" in failure.why
    assert failure.why.endswith(f"; to run it anew, remove {run.directory}")
