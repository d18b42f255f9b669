"""A real run as it is seen from outside: its processes, what it waits for, its logs, and its end."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from arl.metrics.run_status import RunStatus, read_status
from tests.forks import ForkedCommand, arl
from tests.processes import survivors
from tests.run.test_train import Command, start

__all__ = ["start"]  # a fixture

PATIENCE = 60.0


def status_of(run: Path, holds: Callable[[RunStatus], bool]) -> RunStatus:
    """Return the first status of which something holds; the run writes one a second."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        status = read_status(run)
        if holds(status):
            return status
    raise AssertionError(f"this never was so: {status}")


def test_a_living_run_is_seen_with_its_processes_its_wait_and_its_logs_and_then_the_rank_that_was_killed(
    start: Callable[..., Command],
) -> None:
    settings = ("train.steps=100000", "output.checkpoint_every=2", "eval.problems=0", "engine.replicas=2")
    command = start(*settings, gates=[16 * 6])
    command.read_until("step    5")
    held = status_of(command.run, lambda status: any(w.who == "trainer" and w.seconds > 1 for w in status.waits))
    assert any("4 groups for step" in wait.what for wait in held.waits)
    assert held.stage == "training"
    processes = {process.role: process for process in held.processes}
    assert set(processes) == {"controller", "engine-0", "engine-1", "trainer-0", "reward-0"}
    children = command.children()
    rank = children["arl.train.rank"]
    assert processes["controller"].pid == command.process.pid == held.pid
    assert processes["trainer-0"].pid == rank.pid
    resident = rank.memory_info().rss
    assert 0.5 * resident < (processes["trainer-0"].memory_bytes or 0) < 2 * resident
    shown = arl("top", str(command.run)).stdout
    assert "trainer waits" in shown
    assert f"{processes['engine-1'].pid}" in shown

    follower = ForkedCommand(["logs", str(command.run), "--follow"], command.directory, os.environ)
    assert "engine-0 | ready http" in follower.stdout.readline()
    rank.kill()
    assert command.end() == 3  # far sooner than at any of its deadlines
    death = f"trainer-0 (pid {rank.pid}) was killed by SIGKILL"
    assert f"arl: {death}" in command.output
    assert command.output.splitlines()[-1] == "resume with: arl train runs/small/recipe.yaml --resume"
    assert "Traceback" not in command.output
    assert not survivors(list(children.values()))
    assert not command.weights_left()
    assert f"failed: {death}" in arl("top", str(command.run)).stdout
    assert "Step received" in follower.stdout.read()
    assert follower.wait(PATIENCE) == 0
