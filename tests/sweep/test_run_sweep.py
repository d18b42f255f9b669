"""A sweep that is killed and started again ends as one that nothing interrupted; a failing arm stops no other."""

import io
import json
import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from arl import clock
from arl.config.recipe_file import load_recipe
from arl.errors import RunError
from arl.launch.devices import Share
from arl.sweep import run_sweep as module
from arl.sweep.directory import SweepRun, open_directory
from arl.sweep.request import read_request
from arl.sweep.run_sweep import PROGRAM, ArmRunner, PlannedSweep, dry_run, run_sweep, train_arguments
from arl.sweep.sweep_arms import SweepArm
from tests.forks import ROOT, ForkedCommand, arl
from tests.processes import MARK, left_behind
from tests.sweep.rewards import HOLD

SECONDS = 600  # for two runs to come to where they are held

SWEEP = """\
recipe: small.yaml
set: {train.steps: 4}
arms:
  fresh: {rollout.staleness: 0}
"""


@pytest.fixture
def environment(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Mark what the test starts, and check that nothing of it is left."""
    yield {**os.environ, MARK: request.node.nodeid}
    assert not left_behind(request.node.nodeid)


def kill(run: SweepRun, fifo: Path, environment: dict[str, str], call: int) -> None:
    """Start a run as a sweep does, and kill it when it stays at its reward's `call`."""
    os.mkfifo(fifo)
    held = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    arguments = list(train_arguments(run, is_resumed=False)[len(PROGRAM) :])
    command = ForkedCommand(arguments, ROOT, {**environment, HOLD: f"{fifo}:{call}"})
    ready, _, _ = select.select([held], [], [], SECONDS)
    assert ready, "the run did not come to where it is held"
    os.close(held)
    command.kill()
    assert command.wait(SECONDS) == -signal.SIGKILL


def contents(run: Path) -> dict[str, bytes]:
    """Return everything of a run that must be equal."""
    patterns = ["metrics.jsonl", "trace.json", "trajectories/*", "evaluations/*.json", "checkpoints/*/*.safetensors"]
    files = [file for pattern in patterns for file in run.glob(pattern)]
    found = {str(file.relative_to(run)): file.read_bytes() for file in files}
    found["weights"] = json.loads((run / "summary.json").read_text())["weights_sha256"].encode()
    return found


def test_a_run_that_was_killed_ends_as_one_that_nothing_interrupted(recipe: Path, environment: dict[str, str]) -> None:
    file = recipe.with_name("study.yaml")
    file.write_text(SWEEP)
    planned = PlannedSweep(read_request(file), Console(quiet=True))
    with open_directory(planned.directory, planned.sweep):
        pass
    (fresh,) = planned.runs
    kill(fresh, file.with_name("held"), environment, call=50)
    assert (fresh.state, fresh.has_checkpoint) == ("begun", True), "it is to go on"
    done = arl("sweep", str(file), env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("goes on from its newest checkpoint") == 1
    assert done.stdout.splitlines()[-1] == f"arl report {planned.directory}"
    alone = [f"output.directory={file.parent}/alone", "name=fresh", "train.steps=4"]
    done = arl("train", str(fresh.recipe_file), *(word for setting in alone for word in ("--set", setting)))
    assert done.returncode == 0, done.stderr
    expected = contents(file.parent / "alone" / "fresh")
    assert len(expected) > 8
    assert contents(fresh.directory) == expected


BREAKS = """\
import pathlib, sys
settings = dict(argument.split("=", 1) for argument in sys.argv if "=" in argument)
if "rewards:broken" in pathlib.Path(sys.argv[2]).read_text():
    print("this reward has had enough")
    sys.exit(7)
directory = pathlib.Path(settings["output.directory"], settings["name"])
directory.mkdir(parents=True)
(directory / "summary.json").write_text('{"accuracy_after": 0.5}')
"""


def test_an_arm_that_fails_is_reported_and_stops_no_other(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = (sys.executable, "-c", BREAKS)
    monkeypatch.setattr(module, "PROGRAM", program)
    axis = "reward.function=tests.sweep.rewards:broken,tests.sweep.rewards:held"
    request = read_request(recipe, axes=[axis], jobs=1)
    printed = io.StringIO()
    console = Console(file=printed, width=200)
    with pytest.raises(RunError) as failed:
        run_sweep(request, console)
    directory = recipe.parent / "runs" / "small-sweep"
    arm = "function=tests.sweep.rewards-broken"
    log = directory / "logs" / arm / "seed-0.log"
    message = str(failed.value)
    assert "1 of 2 runs failed; the same command tries them again:" in message
    assert message.endswith(f"exited with code 7: this reward has had enough; log {log}")
    assert (directory / "function=tests.sweep.rewards-held" / "seed-0" / "summary.json").exists()
    assert "0/1" in printed.getvalue()
    dry_run(request, console)
    assert "1 of 2 runs to do, 1 at a time" in printed.getvalue()


def run_with(program: str, run: SweepRun, share: Share, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run it with another program in the place of `arl`; return what failed."""
    monkeypatch.setattr(module, "PROGRAM", (sys.executable, "-c", program))
    runner = ArmRunner([run], [share], print)
    clock.run(runner.run)
    return runner.failed


@pytest.fixture
def wall_run(recipe: Path) -> SweepRun:
    return SweepRun(SweepArm("base", {}, load_recipe(recipe, ["world=wall"])), 0, recipe.parent / "study")


def test_a_resumed_run_that_fails_is_reported_with_the_directory_to_remove(
    wall_run: SweepRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    (wall_run.directory / "checkpoints" / "step_000002").mkdir(parents=True)
    (failure,) = run_with("print('no checkpoint is intact'); exit(2)", wall_run, Share(), monkeypatch)
    assert f"exited with code 2: no checkpoint is intact; log {wall_run.log}" in failure
    assert failure.endswith(f"; to run it anew, remove {wall_run.directory}")
