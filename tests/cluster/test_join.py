"""Engines of another machine join a run by the command that a user types, serve it over the network, and leave it.

    n1: controller, engine-0, trainer rank, reward worker        n2: `arl engines join RUN`, and its engines

Both are namespaces with a network, processes and shared memory of their own, so nothing but the network and the run's
directory connects them: every request and every weight crosses it, in TLS, with the run's key.
"""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.machines import Machine, machines, missing_for_machines
from tests.cluster.trained_once import assert_trained_once
from tests.processes import survivors
from tests.run.test_train import FIRST, Command

GATES = [FIRST, 8 + 16 * 12, 8 + 16 * 24]  # scores; the run waits at each until the test has changed its engines
STEPS = 36
OVER_NETWORK = ("cluster.interface=eth0", "sync.transport=broadcast", f"train.steps={STEPS}", "eval.problems=8")


MISSING = missing_for_machines()
pytestmark = [pytest.mark.long, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]


@pytest.fixture
def two_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Machine]]:
    monkeypatch.chdir(tmp_path)  # where commands run on every machine
    with machines(["n1", "n2"], tmp_path / "machines") as made:
        yield made


@pytest.fixture
def command(two_machines: dict[str, Machine], tmp_path: Path) -> Iterator[Command]:
    prefix = two_machines["n1"].entering([])
    started = Command(tmp_path, *OVER_NETWORK, gates=GATES[1:], is_forked=False, prefix=prefix)
    yield started
    started.clear()


class Joining:
    """Hold `arl engines join` on a machine, once its engine serves."""

    def __init__(self, machine: Machine, run: Path) -> None:
        argv = machine.entering([sys.executable, "-m", "arl.cli", "engines", "join", str(run)])
        self._entered = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self._entered.stdout is not None
        self._output = self._entered.stdout
        line = self._output.readline()
        assert "serves" in line, line + self._output.read()
        (self.command,) = psutil.Process(self._entered.pid).children()
        (self.server,) = self.command.children()
        found = re.match(r"(engine-n\d-\S+) \(pid", line)
        assert found is not None, line
        self.engine = found[1]

    def end(self) -> tuple[int, str]:
        """Wait for the command; return its exit code, and what it has printed."""
        output = self._output.read()
        return self._entered.wait(), output


def engines(machine: Machine, verb: str, run: Path, *rest: str) -> str:
    """Run `arl engines` on a machine, and return what it prints."""
    return machine.run(sys.executable, "-m", "arl.cli", "engines", verb, str(run), *rest, seconds=120).stdout


def rows(machine: Machine, run: Path) -> dict[str, list[str]]:
    """Return name -> row of `arl engines list`."""
    return {line.split()[0]: line.split() for line in engines(machine, "list", run).splitlines()[1:]}


def test_engines_of_another_machine_serve_a_run_receive_its_weights_and_leave_in_every_way(
    two_machines: dict[str, Machine], command: Command
) -> None:
    here = two_machines["n1"]
    there = two_machines["n2"]
    command.read_until("step    4")
    assert (command.run / "secrets" / "certificate.pem").exists(), "beyond loopback the run speaks TLS"
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    join = (sys.executable, "-m", "arl.cli", "engines", "join", str(command.run))
    stranger = there.run(*as_nobody, *join, check=False, seconds=120)
    assert stranger.returncode == 2, stranger.stderr
    assert re.search("Permission denied|is no directory", stranger.stderr), "another user may not even see the run"
    joined = Joining(there, command.run)
    _, node, _, state, version, *_ = rows(there, command.run)[joined.engine]
    assert (node, state) == ("n2", "joined")
    engines(there, "remove", command.run, "engine-0")
    command.open_gate(GATES[1])
    command.read_until("step   14")  # all of it by the engine that has joined
    assert int(rows(here, command.run)[joined.engine][4]) > int(version) >= 4

    removed = Joining(there, command.run)
    assert "go on elsewhere" in engines(there, "remove", command.run, removed.engine)
    code, output = removed.end()
    assert (code, "has none of these engines any more" in output) == (0, True)
    another = Joining(here, command.run)
    joined.command.send_signal(signal.SIGINT)
    code, output = joined.end()
    assert (code, "go on elsewhere" in output) == (130, True), output
    assert list(rows(here, command.run)) == [another.engine]
    command.open_gate(GATES[2])

    assert command.end() == 0, command.output
    assert "Traceback" not in command.output
    summary = json.loads((command.run / "summary.json").read_text())
    assert summary["groups"] == {"trained": STEPS * 4, "in flight": 0}
    assert_trained_once(command.run, STEPS)
    assert not (command.run / "control").exists()
    assert not (command.run / "secrets").exists()
    assert another.end()[0] == 0
    assert not survivors([joined.server, removed.server, another.server])
    assert [process.pid for process in there.processes()] == [there.pid]
