"""Draw faults from a seed, and inflict them on the processes and links of a cluster.

seed ─► draw_faults ─► faults of each run ─► Saboteur ─► SIGKILL, SIGSTOP, SIGCONT · a node's link down, up again
"""

import itertools
import random
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import psutil

from tests.cluster.machines import Machine

Action = Literal["kill", "stop", "pause", "cut"]
# A word of the command line of each role. The number of an engine or a rank is in the name of its step's file.
MODULES = {
    "controller": "arl.cli",
    "engine": "arl.engine.embedded.server",
    "trainer": "arl.train.rank",
    "reward worker": "arl.reward.worker",
    "runner of engine": "step_runner.py",
    "srun of engine": "srun",
}
CUT_SECONDS = (1.0, 10.0, 100.0)
PAUSE_SECONDS = 8.0
FIRST_STEP = 0.2  # of all steps: by then there is a checkpoint
LAST_STEP = 0.9


@dataclass(frozen=True)
class Fault:
    """Say what happens to whom, and when.

    Args:
        action: kill: SIGKILL · stop: SIGSTOP for good · pause: SIGSTOP, then SIGCONT · cut: its node's link goes down.
        role: a key of MODULES.
        seconds: until a pause or a cut ends.
        step: the run shows that it has finished this one, just before.
    """

    action: Action
    role: str
    seconds: float = 0.0
    step: int = 0

    def __str__(self) -> str:
        how_long = f" for {self.seconds:.0f} s" if self.seconds else ""
        link = "link of " if self.action == "cut" else ""
        return f"{self.action} {link}{self.role}{how_long} after step {self.step}"


def every_fault() -> list[Fault]:
    """Return each fault that a role can suffer, once."""
    faults = []
    for role in MODULES:
        faults += [Fault("kill", role), Fault("pause", role, PAUSE_SECONDS)]
        if (
            role != "controller"
        ):  # a run of its own in tests.cluster.fault_bench, because only the job's script ends that
            faults.append(Fault("stop", role))
    # A reward worker is on the controller's node, a runner on its engine's.
    places = ("controller", "engine", "trainer")
    return faults + [Fault("cut", role, seconds) for role in places for seconds in CUT_SECONDS]


def draw_faults(
    seed: int, num_runs: int, steps: int, per_run: int = 2, longest: float | None = None
) -> list[list[Fault]]:
    """Return the faults of each run. Together they are every fault equally often, as far as the numbers allow.

    Args:
        longest: seconds of a cut; None: any.
    """
    source = random.Random(seed)
    deck = _endless_deck(source, longest)
    runs = []
    for _ in range(num_runs):
        faults = list(itertools.islice(deck, per_run))
        when = sorted(source.randint(round(steps * FIRST_STEP), round(steps * LAST_STEP)) for _ in faults)
        runs.append([replace(fault, step=step) for fault, step in zip(faults, when, strict=True)])
    return runs


def _endless_deck(source: random.Random, longest: float | None) -> Iterator[Fault]:
    while True:
        deck = [f for f in every_fault() if longest is None or f.action != "cut" or f.seconds <= longest]
        source.shuffle(deck)
        yield from deck


@dataclass(frozen=True)
class Victim:
    """Name what a fault has hit, as messages of the run name it: role, process id on its node, and node."""

    role: str
    pid: int
    node: str


class Saboteur:
    """Inflict faults on machines, and end those that end by themselves.

    Args:
        nodes: by name.
        source: chooses among processes of one role.
    """

    def __init__(self, nodes: Mapping[str, Machine], source: random.Random) -> None:
        self._nodes = nodes
        self._source = source
        self._ends: list[tuple[float, Machine | psutil.Process]] = []  # when a cut or a pause is over

    def inflict(self, fault: Fault) -> Victim | None:
        """Let `fault` happen now; return whom it has hit, or None if no process has the role at the moment."""
        found = processes_of(self._nodes, fault.role)
        if fault.action == "cut" and fault.role != "controller":
            found = [each for each in found if each[0] != self._controller_node()]
        if not found:
            return None
        node, role, process = self._source.choice(found)
        try:
            victim = Victim(role, pid_on_node(process), node)
            self._hit(fault, self._nodes[node], process)
        except (FileNotFoundError, psutil.NoSuchProcess):  # it has ended by itself in this moment
            return None
        return victim

    def _hit(self, fault: Fault, machine: Machine, process: psutil.Process) -> None:
        over_at = time.monotonic() + fault.seconds
        if fault.action == "cut":
            machine.cut()
            self._ends.append((over_at, machine))
        elif fault.action == "kill":
            process.kill()
        else:
            process.send_signal(signal.SIGSTOP)
        if fault.action == "pause":
            self._ends.append((over_at, process))

    def _controller_node(self) -> str:
        """Return where the controller is; a cut there is a fault of its own."""
        return next((node for node, _, _ in processes_of(self._nodes, "controller")), "")

    @property
    def is_done(self) -> bool:
        """Return whether every cut and every pause is over."""
        return not self._ends

    def end_what_is_over(self) -> None:
        """Take links up again, and let processes go on, whose time has come."""
        now = time.monotonic()
        over = [what for when, what in self._ends if when <= now]
        self._ends = [(when, what) for when, what in self._ends if when > now]
        for what in over:
            _undo(what)


def _undo(what: Machine | psutil.Process) -> None:
    if isinstance(what, Machine):
        what.mend()
        return
    try:
        what.send_signal(signal.SIGCONT)
    except psutil.NoSuchProcess:  # it was killed meanwhile
        return


def processes_of(nodes: Mapping[str, Machine], role: str) -> list[tuple[str, str, psutil.Process]]:
    """Return node, role with its number, and process of each that has `role` now, in the order of their names."""
    found = []
    for name, machine in nodes.items():
        for process in machine.processes():
            numbered = _numbered_role(process, role)
            if numbered is not None:
                found.append((name, numbered, process))
    return sorted(found, key=lambda each: (each[1], each[0]))


def _numbered_role(process: psutil.Process, role: str) -> str | None:
    """Return the role of a process with its number, such as trainer-1; None: it has another role."""
    try:
        words = process.cmdline()
        parent = process.parent()
        above = [] if parent is None else parent.cmdline()
    except psutil.Error:  # it has just ended
        return None
    if not any(Path(word).name == MODULES[role] for word in words):
        return None
    if role in ("controller", "reward worker"):
        return role
    is_step_itself = role.endswith("of engine")
    files = [Path(word).stem for word in (words if is_step_itself else above) if "/steps-" in word]
    steps = [name.rpartition("-")[0] for name in files]  # what follows is new for each step
    kind = role.rpartition(" ")[2]
    return steps[0] if steps and steps[0].startswith(f"{kind}-") else None


def pid_on_node(process: psutil.Process) -> int:
    """Return the id that a process has in its own pid namespace."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("NSpid:"))
    return int(line.split()[-1])


def describe(faults: Sequence[Fault]) -> str:
    """Return faults in one line."""
    return "; ".join(str(fault) for fault in faults)
