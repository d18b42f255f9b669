"""Run on a node of a Slurm job, between Slurm and one process of the run, and pass on signals, deaths and exit codes.

    srun … python -I arl/launch/slurm/step_runner.py FILE

    controller ── stdin of srun: numbers of signals, and an empty line every few seconds ──► runner ──► process
               ◄── stdout of srun: the pid first, all output of the process, its exit code last ───

srun alone does not do for a process what a parent does (observed with Slurm 22.05 and documented by none):

- SIGTERM to srun kills the process at once by SIGKILL. So signals travel as lines, and the process may end in peace.
- When srun is killed, the process lives on, and its standard input stays open. So silence ends the process.
- The exit code of srun is 0 if the node fails, and 137 may be an exit code or SIGKILL. So the runner reports it.
- The environment of srun crosses the network in the clear. So FILE, which its owner alone can read, carries it.

FILE is JSON (see arl.launch.slurm.step_file), and is removed when it has been read.
"""

import contextlib
import json
import os
import platform
import re
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MARK = "arl-step "  # begins the lines of the runner itself
SIGNAL = re.compile(rb"[0-9]{1,2}")  # a line of the controller
LONGEST_LINE = 16  # bytes of a line of the controller
STATE = "state"  # line of the controller that asks for the state of the process
CHILD = Path(__file__).parent.parent / "child.py"
ROOT = Path(__file__).parents[3]  # where arl is found
PIECES = 12  # in which silence is counted
OF_THE_NODE = ("SLURM", "HOSTNAME")  # beginnings of names of variables that differ between nodes


def read_step(file: Path) -> dict[str, Any]:
    """Read what to run, and remove the file.

    Raises:
        SystemExit: this node does not see the file, or sees something else.
    """
    try:
        text = file.read_text()
    except FileNotFoundError as error:
        raise SystemExit(
            f"node {platform.node()} does not see {file}; give output.directory a path on a file system that all nodes "
            "share"
        ) from error
    try:
        step: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise SystemExit(
            f"node {platform.node()} sees another {file} than the controller has written: {error}"
        ) from error
    file.unlink()
    return step


def merged_environment(step: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment of the process: the controller's, but what describes a node is this node's."""
    from arl.launch.address import interface_of
    from arl.launch.child import PARENT

    given = step["environment"]
    sent = {name: value for name, value in given.items() if not name.startswith(OF_THE_NODE)}
    interface = interface_of(step["address"])
    network = {} if interface is None else {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    return {**os.environ, **sent, **network, PARENT: str(os.getpid())}


class StepRunner:
    """Watch one process and standard input until either ends.

    Args:
        silence: seconds without a line of the controller, after which it must be dead.
        deaths: a descriptor that can be read when a child has died.
    """

    def __init__(self, process: subprocess.Popen[bytes], silence: float, deaths: int) -> None:
        from arl.launch.process_state import state_of

        self._process = process
        self._silence = silence
        self._deaths = deaths
        self._unfinished = b""
        self._state_of = state_of  # it is imported now, because the file system may hang when the controller asks

    def watch(self) -> None:
        """Pass signals on until the process ends. Waits for lines and for its death; silence ends it.

        Silence is counted in pieces, because a job that was suspended for an hour has been silent for one piece only.
        """
        piece = self._silence / PIECES
        silent = 0.0
        while self._process.poll() is None:
            readable, _, _ = select.select([0, self._deaths], [], [], piece)
            silent = silent + piece if not readable else 0.0
            if self._deaths in readable:
                os.read(self._deaths, 4096)
            if 0 in readable:
                self._take_input()
            if silent >= self._silence:
                self._end(f"the controller has said nothing for {self._silence:.0f} s")
        self.signal(signal.SIGKILL)  # what it has started and left behind

    def _take_input(self) -> None:
        piece = os.read(0, 4096)
        if not piece:
            self._end("the controller has gone")
            return
        *lines, self._unfinished = (self._unfinished + piece).split(b"\n")
        for line in lines:
            self._obey(line)
        if len(self._unfinished) > LONGEST_LINE:
            self._obey(self._unfinished)

    def _obey(self, line: bytes) -> None:
        """Do what a line of the controller says. One that says nothing known ends the process, because of a mix-up."""
        if line == STATE.encode():
            report(f"state {self._state_of(self._process.pid)}")
        elif not line:
            return  # a sign of life
        elif SIGNAL.fullmatch(line) and int(line) in signal.valid_signals():
            self.signal(int(line))
        else:
            self._end(f"the controller has sent {line[:LONGEST_LINE]!r}, which is no signal")

    def _end(self, why: str) -> None:
        """Kill the process, and then say why: nobody may be there who reads it."""
        self.signal(signal.SIGKILL)
        self._process.wait()
        with contextlib.suppress(OSError):
            report(why)

    def signal(self, number: int) -> None:
        """Send a signal to the process and to what it has started in its session."""
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return


def report(words: str) -> None:
    """Write a line to the controller."""
    print(f"{MARK}{words}", flush=True)


def main(file: str) -> None:
    """Run the process of a step to its end."""
    sys.path.insert(0, str(ROOT))  # nothing is installed, as far as this interpreter knows
    step = read_step(Path(file))
    deaths, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: None)  # Slurm ends a job by SIGTERM to every process: this one comes last
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(CHILD), *step["argv"]],
        stdin=subprocess.DEVNULL,
        env=merged_environment(step),
        cwd=step["directory"],
        start_new_session=True,
    )
    runner = StepRunner(process, step["silence"], deaths)
    report(f"pid {process.pid}")
    runner.watch()
    report(f"ended {process.returncode}")


if __name__ == "__main__":
    main(sys.argv[1])
