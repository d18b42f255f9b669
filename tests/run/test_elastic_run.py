"""Engines join a real run from processes of their own, are killed and removed; it trains the same."""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.trained_once import assert_trained_once
from tests.forks import ForkedCommand, arl
from tests.processes import survivors
from tests.run.test_train import FIRST, Command

GATES = [FIRST, 8 + 16 * 12, 8 + 16 * 24]  # scores; the run waits at each until the test has changed its engines
STEPS = 36


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    started = Command(tmp_path, f"train.steps={STEPS}", "eval.problems=8", gates=GATES[1:])
    yield started
    started.clear()


def engines(command: Command, *arguments: str) -> str:
    """Run `arl engines` on the run, and return what it prints."""
    verb, *rest = arguments
    done = arl("engines", verb, str(command.run), *rest)
    assert done.returncode == 0, done.stderr
    return done.stdout


def states(command: Command) -> dict[str, str]:
    """Return name -> state of the run's engines, as `arl engines list` shows them."""
    rows = [line.split() for line in engines(command, "list").splitlines()[1:]]
    return {row[0]: row[3] for row in rows}


def join(command: Command) -> ForkedCommand:
    """Join the run with one engine, and return once it serves."""
    joining = ForkedCommand(["engines", "join", str(command.run)], command.directory, {})
    line = joining.stdout.readline()
    assert "serves" in line, line + joining.stdout.read()
    return joining


def server_of(process: ForkedCommand) -> psutil.Process:
    (server,) = psutil.Process(process.pid).children()
    return server


@pytest.mark.slow
def test_a_run_whose_engines_join_are_killed_and_removed_trains_everything_once(command: Command) -> None:
    command.read_until("step    4")
    assert states(command) == {"engine-0": "serving"}
    staying = join(command)
    killed = join(command)
    leaving = join(command)
    assert sorted(states(command).values()) == ["joined", "joined", "joined", "serving"]
    command.open_gate(GATES[1])
    command.read_until("step   16")

    killed_server = server_of(killed)
    killed_server.kill()
    assert killed.wait() == 3
    assert f"(pid {killed_server.pid}) was killed by SIGKILL" in killed.stdout.read()
    while len(states(command)) == 4:  # the controller gives it up, or its command has it removed, whoever is first
        assert command.process.poll() is None
    assert "go on elsewhere" in engines(command, "remove", "engine-0")
    left_server = server_of(leaving)
    leaving.send_signal(signal.SIGTERM)
    assert leaving.wait() == 130
    ((last, state),) = states(command).items()
    assert state == "joined"
    refused = arl("engines", "remove", str(command.run), last)
    assert refused.returncode == 2
    assert "is the run's only engine" in refused.stderr
    command.open_gate(GATES[2])

    assert command.end() == 0, command.output
    assert "Traceback" not in command.output
    assert re.search(
        r"engine-0 \(pid \d+ on .*\) was removed; \d+ open requests go on elsewhere; it has 2 engines", command.output
    )
    summary = json.loads((command.run / "summary.json").read_text())
    assert summary["groups"] == {"trained": STEPS * 4, "in flight": 0}
    assert_trained_once(command.run, STEPS)
    assert not (command.run / "control").exists()
    assert not (command.run / "secrets").exists()
    assert staying.wait() == 0
    assert "has ended" in staying.stdout.read()
    assert not survivors([killed_server, left_server])
    assert not command.weights_left()
