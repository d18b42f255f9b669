"""A sweep that is killed and started again ends as one that nothing interrupted; a failing arm stops no other."""

import contextlib
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
from arl.launch.child import CORES
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
arms:
  stale: {rollout.staleness: 2}
  fresh: {rollout.staleness: 0}
jobs: 2
"""


class Sweeps:
    """Run one sweep file again and again."""

    def __init__(self, file: Path, mark: str) -> None:
        self.file = file
        self.directory = file.parent / "runs" / file.stem
        self.environment = {**os.environ, MARK: mark}

    def plan(self) -> PlannedSweep:
        return PlannedSweep(read_request(self.file), Console(quiet=True))

    def kill_runs(self, call: int) -> None:
        """Start its runs alone, as it does, and kill them when both stay at their reward's `call`."""
        planned = self.plan()
        with open_directory(planned.directory, planned.sweep):
            pass
        with self.wait_until_held(call) as environment:
            arguments = [train_arguments(run, is_resumed=False)[len(PROGRAM) :] for run in planned.runs]
            commands = [ForkedCommand(list(of_run), ROOT, environment) for of_run in arguments]
        for command in commands:
            command.kill()
            assert command.wait(SECONDS) == -signal.SIGKILL

    @contextlib.contextmanager
    def wait_until_held(self, call: int) -> Iterator[dict[str, str]]:
        """Yield the environment of two runs; at its end wait until both stay at their reward's `call`."""
        fifo = self.file.parent / f"held-{call}"
        os.mkfifo(fifo)
        held = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
        yield {**self.environment, HOLD: f"{fifo}:{call}"}
        num_held = 0
        while num_held < 2:
            ready, _, _ = select.select([held], [], [], SECONDS)
            assert ready, "a run did not come to where it is held"
            num_held += len(os.read(held, 2))
        os.close(held)

    def end(self) -> str:
        """Run it to its end; return what it printed."""
        done = arl("sweep", str(self.file), env=self.environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def states(self) -> dict[str, str]:
        """Return the state of each arm's run."""
        return {run.arm.name: run.state for run in self.plan().runs}

    def num_checkpoints(self, arm: str) -> int:
        return len(list((self.directory / arm).glob("*/checkpoints/step_*")))


def contents(run: Path) -> dict[str, bytes]:
    """Return everything of a run that must be equal."""
    patterns = ["metrics.jsonl", "trace.json", "trajectories/*", "evaluations/*.json", "checkpoints/*/*.safetensors"]
    files = [file for pattern in patterns for file in run.glob(pattern)]
    found = {str(file.relative_to(run)): file.read_bytes() for file in files}
    found["weights"] = json.loads((run / "summary.json").read_text())["weights_sha256"].encode()
    return found


@pytest.fixture
def sweeps(recipe: Path, request: pytest.FixtureRequest) -> Iterator[Sweeps]:
    file = recipe.with_name("study.yaml")
    file.write_text(SWEEP)
    mark = request.node.nodeid
    yield Sweeps(file, mark)
    assert not left_behind(mark)


def test_runs_that_were_killed_end_as_those_that_nothing_interrupted(sweeps: Sweeps) -> None:
    sweeps.kill_runs(50)
    assert sweeps.states() == {"stale": "begun", "fresh": "begun"}
    assert sweeps.num_checkpoints("stale") == 0, "it is to start anew"
    assert sweeps.num_checkpoints("fresh") > 0, "it is to go on"
    output = sweeps.end()
    assert output.count("goes on from its newest checkpoint") == 1
    assert output.splitlines()[-1] == f"arl report {sweeps.directory}"
    for arm in ("stale", "fresh"):
        expected = contents(train_alone(sweeps, arm))
        assert len(expected) > 8
        assert contents(sweeps.directory / arm / "seed-0") == expected


def test_runs_of_world_virtual_see_every_core_however_many_go_on_at_a_time(recipe: Path) -> None:
    """So each has the warm-up that `arl train` alone gives it, whose weights depend on the number of cores."""
    cores = {}
    for jobs in (1, 2):
        request = read_request(recipe, axes=["rollout.staleness=0,1"], jobs=jobs)
        shares = PlannedSweep(request, Console(quiet=True)).shares
        assert len(shares) == jobs
        cores[jobs] = {share.environment.get(CORES) for share in shares}
    assert cores == {1: {None}, 2: {None}}


def train_alone(sweeps: Sweeps, arm: str) -> Path:
    """Train an arm of a sweep without the sweep, uninterrupted; return the run directory."""
    directory = sweeps.file.parent / "alone"
    recipe = sweeps.directory / "recipes" / f"{arm}.yaml"
    done = arl("train", str(recipe), "--set", f"name={arm}", "--set", f"output.directory={directory}")
    assert done.returncode == 0, done.stderr
    return directory / arm


BREAKS = """\
import pathlib, sys
settings = dict(argument.split("=", 1) for argument in sys.argv if "=" in argument)
if "rewards:broken" in pathlib.Path(sys.argv[2]).read_text():
    print("this reward has had enough")
    sys.exit(7)
directory = pathlib.Path(settings["output.directory"], settings["name"])
directory.mkdir(parents=True)
(directory / "summary.json").write_text({summary!r})
"""
SUMMARY = """{
"directory": "", "accuracy_before": null, "accuracy_after": 0.5, "eval_problems": 4, "seconds": 1, "steps": 2,
"training_seconds": 1, "tokens_trained": 9, "tokens_generated": 9,
"token_ages": {}, "trajectories_spanning_versions": 0, "groups": {},
"selection": {}, "selection_bias": [], "idle_trainer": 0, "idle_engine": 0, "weights_sha256": ""}
"""


def test_an_arm_that_fails_is_reported_and_stops_no_other(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = (sys.executable, "-c", BREAKS.format(summary=SUMMARY))
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
    assert f"{arm} seed 0: arl train (pid " in message
    assert message.endswith(f"exited with code 7: this reward has had enough; log {log}")
    assert log.read_text() == "this reward has had enough\n"
    assert (directory / "function=tests.sweep.rewards-held" / "seed-0" / "summary.json").exists()
    assert "0/1" in printed.getvalue()
    dry_run(request, console)
    assert "1 of 2 runs to do, 1 at a time" in printed.getvalue()


TRAIN = """\
import os, pathlib, sys
import yaml
settings = dict(argument.split("=", 1) for argument in sys.argv if "=" in argument)
directory = pathlib.Path(yaml.safe_load(settings["output.directory"]), yaml.safe_load(settings["name"]))
directory.mkdir(parents=True)
(directory / "summary.json").write_text({summary!r})
print("cores", sorted(os.sched_getaffinity(0)))
"""


def runs_of(recipe: Path, sweep: Path, seeds: int = 1) -> list[SweepRun]:
    arm = SweepArm("base", {}, load_recipe(recipe, ["world=wall"]))
    return [SweepRun(arm, seed, sweep) for seed in range(seeds)]


def run_with(program: str, runs: list[SweepRun], share: Share, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run the runs with another program in the place of `arl`."""
    monkeypatch.setattr(module, "PROGRAM", (sys.executable, "-c", program))
    runner = ArmRunner(runs, [share], print)
    clock.run(runner.run)
    return runner.failed


def test_a_run_keeps_to_the_cores_of_its_share(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = runs_of(recipe, recipe.parent / "study")
    core = max(os.sched_getaffinity(0))
    assert not run_with(TRAIN.format(summary=SUMMARY), [run], Share(cores=(core,)), monkeypatch)
    assert run.log.read_text() == f"cores [{core}]\n"


def test_a_resumed_run_that_fails_is_reported_with_the_directory_to_remove(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = runs_of(recipe, recipe.parent / "study")
    (run.directory / "checkpoints" / "step_000002").mkdir(parents=True)
    (failure,) = run_with("print('no checkpoint is intact'); exit(2)", [run], Share(), monkeypatch)
    assert f"exited with code 2: no checkpoint is intact; log {run.log}" in failure
    assert failure.endswith(f"; to run it anew, remove {run.directory}")
