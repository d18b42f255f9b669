"""Whole runs that Ctrl-C or SIGTERM stops: what they save, what they say, and what is left of them."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from arl.errors import RunStopped
from arl.run.failures import stopped_by_signals
from tests.cluster.trained_once import assert_trained_once
from tests.processes import survivors
from tests.run.test_train import Command, start

__all__ = ["start"]  # a fixture


def test_after_ctrl_c_a_run_is_saved_and_a_resumed_one_goes_on_where_it_was(start: Callable[..., Command]) -> None:
    """In mode collocated with staleness, where trajectories are carried over turns."""
    rollout = ("rollout.problems_per_step=2", "rollout.max_new_tokens=100")
    settings = ("train.steps=8", "eval.problems=0", "mode=collocated", *rollout)
    gate = 8 * 5  # nothing after step 5 can be trained before it is opened
    command = start(*settings, gates=[gate])
    command.read_until("step    2")
    children = list(command.children().values())
    command.process.send_signal(signal.SIGINT)
    command.read_until("stopping: the step in progress ends and a checkpoint is written")
    command.open_gate(gate)
    assert command.end() == 130
    assert not survivors(children)
    assert not command.weights_left()
    version = command.metrics()[-1]["step"]
    assert 2 <= version <= 5
    told = f"arl: stopped at version {version}; resume with: arl train runs/small/recipe.yaml --resume"
    assert command.output.splitlines()[-1] == told
    assert [path.name for path in (command.run / "checkpoints").iterdir()] == [f"step_{version}"]
    assert not (command.run / "summary.json").exists()

    resumed = start(*settings, resume=True)
    assert resumed.end() == 0, resumed.output
    assert f"from step_{version};" in resumed.output
    steps = resumed.metrics()
    assert [record["step"] for record in steps] == list(range(1, 9))
    assert max(record["staleness/max"] for record in steps) in {1, 2}
    assert sum(record["versions/spanning_fraction"] for record in steps) > 0
    assert_trained_once(resumed.run, 8)


@pytest.fixture
def stops() -> Iterator[list[str]]:
    """Handle signals as the command line does; what a run is asked goes here."""
    # A shell that has started the tests in the background has Ctrl-C ignored.
    of_interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    of_end = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    of_terminal = signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGINT))
    yield []
    signal.signal(signal.SIGHUP, of_terminal)
    signal.signal(signal.SIGINT, of_interrupt)
    signal.signal(signal.SIGTERM, of_end)


def controller(stops: list[str]) -> Any:
    """Return what stands for a controller that has trained three steps."""
    return SimpleNamespace(version=3, stop=lambda: stops.append("stop"))


def stopping(stops: list[str], seconds: float, *numbers: signal.Signals) -> None:
    """Send signals to a block that goes on for longer than it may."""

    async def train() -> None:
        async with stopped_by_signals(controller(stops), Path("runs/small"), lambda line: None, seconds):
            for number in numbers:
                await asyncio.sleep(0.01)
                signal.raise_signal(number)
            await asyncio.sleep(30)

    asyncio.run(train())


def test_a_second_ctrl_c_ends_the_run_at_once(stops: list[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        stopping(stops, 30.0, signal.SIGTERM, signal.SIGINT)
    assert stops == ["stop"]


def test_a_terminal_that_is_closed_is_no_second_ctrl_c(stops: list[str]) -> None:
    with pytest.raises(RunStopped, match="without a checkpoint"):
        stopping(stops, 0.5, signal.SIGHUP, signal.SIGHUP)
    assert stops == ["stop"]


def test_a_run_that_cannot_be_saved_in_time_ends_and_says_so(stops: list[str]) -> None:
    with pytest.raises(RunStopped, match=r"stopped at version 3 without a checkpoint of it, .* 0.05 s after the"):
        stopping(stops, 0.05, signal.SIGINT)


def test_a_signal_that_comes_as_training_ends_has_the_effect_of_one_that_comes_just_after(stops: list[str]) -> None:
    async def train() -> None:
        async with stopped_by_signals(controller(stops), Path("runs/small"), stops.append, 10.0):
            await asyncio.sleep(0)
            signal.raise_signal(signal.SIGTERM)  # the loop does not turn any more before the block ends
        await asyncio.sleep(30)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(train())
    assert stops == []
