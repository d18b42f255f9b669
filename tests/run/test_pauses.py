"""Whole runs of which a part, or everything, is stopped for longer than every deadline, and goes on."""

import re
import signal
import time
from collections.abc import Callable, Sequence

import psutil
import pytest

from tests.run.test_train import Command, assert_everything_was_trained_once, start

__all__ = ["start"]  # a fixture
PAUSE = 20.0
DEADLINES = ("deadlines.step=12", "deadlines.swap=10", "deadlines.generate=10", "deadlines.reward=8")
STEPS = 14
NOTICED = re.compile(r"the controller \(pid (\d+)\) could not run for (\d+) s")


def everything(command: Command) -> Sequence[psutil.Process]:
    controller = psutil.Process(command.process.pid)
    return [controller, *controller.children(recursive=True)]


def controller_alone(command: Command) -> Sequence[psutil.Process]:
    return [psutil.Process(command.process.pid)]


@pytest.mark.long
@pytest.mark.parametrize("stopped", [controller_alone, everything])
@pytest.mark.parametrize("transport", ["file", "broadcast"])
def test_a_run_that_was_stopped_for_longer_than_its_deadlines_goes_on_and_blames_nobody(
    start: Callable[..., Command], stopped: Callable[[Command], Sequence[psutil.Process]], transport: str
) -> None:
    settings = (f"train.steps={STEPS}", "eval.problems=0", "engine.max_restarts=0", f"sync.transport={transport}")
    gate = 16 * 6
    command = start(*settings, *DEADLINES, gates=[gate])
    command.read_until("step    3")
    processes = stopped(command)
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    time.sleep(PAUSE)  # the stop itself is what is tested
    for process in reversed(processes):
        process.send_signal(signal.SIGCONT)
    command.open_gate(gate)
    assert command.end() == 0, command.output
    noticed = NOTICED.search(command.output)
    assert noticed is not None, command.output
    assert int(noticed[1]) == command.process.pid
    assert int(noticed[2]) >= PAUSE - 2
    assert [record.get("engines/restarts", 0) for record in command.metrics()][-1] == 0
    assert_everything_was_trained_once(command, steps=STEPS)
