"""Whole runs that Ctrl-C or SIGTERM stops: what they save, what they say, and what is left of them."""

import asyncio
import os
import re
import signal
from collections.abc import Callable

import pytest

from arl.errors import RunStopped
from arl.run.clean_stop import stopped_by_signals
from tests.processes import survivors
from tests.run.test_train import Command, assert_everything_was_trained_once, start

__all__ = ["start"]  # a fixture

AT_ONCE = "arl: interrupted; everything it had started has ended"
STOPPING = "stopping: the step in progress ends and a checkpoint is written"


def last_line(command: Command) -> str:
    assert "Traceback" not in command.output
    return command.output.splitlines()[-1]


def pass_gate(command: Command, number: int) -> None:
    """Wait until score `number` is at its gate, and open it."""
    os.close(os.open(command.directory / f"gate-{number}", os.O_WRONLY))


def test_after_ctrl_c_a_run_is_saved_and_a_resumed_one_goes_on_where_it_was(start: Callable[..., Command]) -> None:
    settings = ("train.steps=12", "eval.problems=0")
    gate = 16 * 8  # nothing after step 8 can be trained before it is opened
    command = start(*settings, gates=[gate])
    command.read_until("step    4")
    children = list(command.children().values())
    command.process.send_signal(signal.SIGINT)
    command.read_until(STOPPING)
    command.open_gate(gate)
    assert command.end() == 130
    assert not survivors(children)
    assert not command.weights_left()
    version = command.metrics()[-1]["step"]
    assert 4 <= version <= 8
    told = f"arl: stopped at version {version}; resume with: arl train runs/small/recipe.yaml --resume"
    assert last_line(command) == told
    assert [path.name for path in (command.run / "checkpoints").iterdir()] == [f"step_{version}"]
    assert not (command.run / "summary.json").exists()

    resumed = start(*settings, resume=True)
    assert resumed.end() == 0, resumed.output
    assert f"from step_{version};" in resumed.output
    assert [record["step"] for record in resumed.metrics()] == list(range(1, 13))
    assert_everything_was_trained_once(resumed, steps=12)


def test_sigterm_before_the_first_step_stops_a_run_that_has_nothing_to_save(start: Callable[..., Command]) -> None:
    command = start("eval.problems=0", gates=[2, 3])
    command.read_until("run directory")
    pass_gate(command, 2)
    children = list(command.children().values())
    command.process.send_signal(signal.SIGTERM)
    assert command.end() == 130
    assert last_line(command) == "arl: stopped before its first step, so there is no checkpoint to resume from"
    assert not survivors(children)


def test_a_second_ctrl_c_ends_the_run_at_once(start: Callable[..., Command]) -> None:
    command = start("train.steps=100", "eval.problems=0")
    command.read_until("step    3")
    processes = command.children()
    processes["arl.train.rank"].send_signal(signal.SIGSTOP)  # no step and no checkpoint can end
    command.process.send_signal(signal.SIGINT)
    command.read_until(STOPPING)
    command.process.send_signal(signal.SIGINT)
    assert command.end() == 130
    assert last_line(command) == AT_ONCE
    assert not survivors(list(processes.values()))


def test_a_run_that_cannot_be_saved_in_time_ends_and_says_so(start: Callable[..., Command]) -> None:
    command = start("train.steps=100", "eval.problems=0", "deadlines.stop=0.5")
    command.read_until("step    3")
    processes = command.children()
    processes["arl.train.rank"].send_signal(signal.SIGSTOP)
    command.process.send_signal(signal.SIGINT)
    assert command.end() == 130
    late = r"arl: stopped at version \d+ without a checkpoint of it, which was not complete 0.5 s after"
    assert re.match(late, last_line(command)), command.output
    assert not survivors(list(processes.values()))


def no_more_time() -> RunStopped:
    raise AssertionError("the block has ended in time")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_as_training_ends_has_the_effect_of_one_that_comes_just_after(
    number: signal.Signals,
) -> None:
    stops: list[str] = []

    async def train() -> None:
        async with stopped_by_signals(lambda: stops.append("stop"), stops.append, 10.0, no_more_time):
            await asyncio.sleep(0)
            signal.raise_signal(number)  # the loop does not turn any more before the block ends
        await asyncio.sleep(30)
        raise AssertionError("the signal was lost")

    # A shell that has started the tests in the background has Ctrl-C ignored.
    of_interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    of_end = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # as the command line does
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(train())
    finally:
        signal.signal(signal.SIGINT, of_interrupt)
        signal.signal(signal.SIGTERM, of_end)
    assert stops == []
