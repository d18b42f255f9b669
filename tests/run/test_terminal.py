"""A run outlives the terminal, the pipe or the disk that its console writes to."""

import io
import os
import pty
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from arl import outputs
from arl.outputs import LOG, LastingOutput, go_on_in
from tests.processes import survivors
from tests.run.test_train import Command, start

__all__ = ["start"]  # a fixture


def closed_pipe() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def closed_terminal() -> int:
    main, terminal = pty.openpty()
    os.close(main)
    return terminal


def held_terminal() -> int:
    """Return a terminal in which Ctrl-S was pressed."""
    main, terminal = pty.openpty()
    os.write(main, b"\x13")
    assert os.isatty(terminal)
    return terminal


def full_disk() -> int:
    return os.open("/dev/full", os.O_WRONLY)


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "BLOCKED_SECONDS", 0.05)
    monkeypatch.setattr(LastingOutput, "log", Path(os.devnull))
    monkeypatch.setattr(LastingOutput, "replaced", set())


@pytest.mark.parametrize("broken", [closed_pipe, closed_terminal, held_terminal, full_disk])
@pytest.mark.parametrize("is_named", [True, False])
def test_what_a_console_does_not_take_is_in_a_log_as_soon_as_that_is_known(
    tmp_path: Path, broken: Callable[[], int], is_named: bool
) -> None:
    descriptor = broken()
    stream = io.TextIOWrapper(io.BufferedWriter(LastingOutput(descriptor)), line_buffering=True)
    if is_named:
        go_on_in(tmp_path)
    print("before" * 1000, file=stream)
    if not is_named:
        go_on_in(tmp_path)
    print("after", file=stream)
    os.write(descriptor, b"of a library\n")
    said, *lines = (tmp_path / LOG).read_text().splitlines()
    assert said.startswith("the console cannot be written")
    assert lines == [*(["before" * 1000] if is_named else []), "after", "of a library"]
    assert not stream.isatty()
    os.close(descriptor)


@pytest.mark.slow
def test_a_run_whose_terminal_is_closed_is_saved_and_says_so_in_its_log(start: Callable[..., Command]) -> None:
    """The kernel and the shell send a signal each; nobody reads the output any more."""
    command = start("train.steps=500", "eval.problems=0")
    command.read_until("step    2")
    children = list(command.children().values())
    assert command.process.stdout is not None
    command.process.stdout.close()
    command.process.send_signal(signal.SIGHUP)
    command.process.send_signal(signal.SIGHUP)
    assert command.process.wait() == 130
    assert not survivors(children)
    version = command.metrics()[-1]["step"]
    assert (command.run / "checkpoints" / f"step_{version}" / "manifest.json").exists()
    said = (command.run / "logs" / LOG).read_text()
    assert "stopping: the step in progress ends" in said
    assert f"arl: stopped at version {version}; resume with" in said
