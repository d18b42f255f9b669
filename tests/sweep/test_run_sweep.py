"""A sweep that is killed and started again ends as one that nothing interrupted; a failing arm stops no other."""

import json
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from arl.launch.child import CORES
from arl.sweep.request import SweepOptions, read_request
from arl.sweep.run_sweep import PlannedSweep
from tests.forks import ROOT, ForkedCommand, arl
from tests.processes import MARK, left_behind
from tests.sweep.rewards import HOLD

SECONDS = 120  # for two runs to come to where they are held

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

    def start_held(self, call: int) -> ForkedCommand:
        """Start it, and wait until both runs stay at their reward's `call`."""
        fifo = self.file.parent / f"held-{call}"
        os.mkfifo(fifo)
        held = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
        command = ForkedCommand(["sweep", str(self.file)], ROOT, {**self.environment, HOLD: f"{fifo}:{call}"})
        num_held = 0
        while num_held < 2:
            ready, _, _ = select.select([held], [], [], SECONDS)
            assert ready, "a run did not come to where it is held"
            num_held += len(os.read(held, 2))
        os.close(held)
        return command

    def end(self) -> str:
        """Run it to its end; return what it printed."""
        done = arl("sweep", str(self.file), env=self.environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def dry_run(self) -> str:
        done = arl("sweep", str(self.file), "--dry-run", env=self.environment)
        assert done.returncode == 0, done.stderr
        return done.stdout


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


def test_a_sweep_that_is_killed_twice_ends_as_one_that_nothing_interrupted(sweeps: Sweeps) -> None:
    command = sweeps.start_held(50)
    refused = arl("sweep", str(sweeps.file), env=sweeps.environment)
    assert refused.returncode == 2
    assert "another process runs this sweep" in refused.stderr
    command.kill()
    assert command.wait(SECONDS) == -signal.SIGKILL
    plan = sweeps.dry_run()
    assert plan.count("1 begun") == 2, plan
    checkpoints = {arm: len(list((sweeps.directory / arm).glob("*/checkpoints/step_*"))) for arm in ("stale", "fresh")}
    assert checkpoints["stale"] == 0, "it is to start anew"
    assert checkpoints["fresh"] > 0, "it is to go on"

    command = sweeps.start_held(60)
    command.send_signal(signal.SIGTERM)
    assert command.wait(SECONDS) == 130
    assert "the same command goes on with this sweep" in command.stdout.read()

    output = sweeps.end()
    assert output.count("goes on after step") == 2
    assert output.splitlines()[-1] == f"arl report {sweeps.directory}"
    assert "2 of 2 runs are finished" in sweeps.end()

    for arm in ("stale", "fresh"):
        expected = contents(train_alone(sweeps, arm))
        assert len(expected) > 8
        assert contents(sweeps.directory / arm / "seed-0") == expected


def test_runs_of_world_virtual_see_every_core_however_many_go_on_at_a_time(recipe: Path) -> None:
    """So each has the warm-up that `arl train` alone gives it, whose weights depend on the number of cores."""
    cores = {}
    for jobs in (1, 2):
        request = read_request(recipe, SweepOptions(axes=["rollout.staleness=0,1"], jobs=jobs))
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


def test_an_arm_that_fails_is_reported_and_stops_no_other(recipe: Path) -> None:
    arguments = ["sweep", str(recipe), "--axis", "reward.function=tests.sweep.rewards:broken,tests.sweep.rewards:held"]
    done = arl(*arguments, "--jobs", "1", "--set", "train.steps=2")
    assert done.returncode == 3
    directory = recipe.parent / "runs" / "small-sweep"
    arm = "function=tests.sweep.rewards-broken"
    log = directory / "logs" / arm / "seed-0.log"
    failure = f"{arm} seed 0: arl train (pid "
    assert "1 of 2 runs failed; the same command tries them again:" in done.stderr
    assert failure in done.stderr
    assert f"exited with code 7: this reward has had enough; log {log}" in done.stderr
    assert "this reward has had enough" in log.read_text()
    assert (directory / "function=tests.sweep.rewards-held" / "seed-0" / "summary.json").exists()
    assert "0/1" in done.stdout
    estimated = arl(*arguments, "--set", "train.steps=2", "--dry-run")
    assert "1 finished runs of this sweep" in estimated.stdout
