"""Find the processes of one run on this machine, by a mark in their environment, and name their roles.

/proc ─► those whose environment holds the mark, however deep ─► role, by their command line
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.processes import MARK

# Words of which a command line of each role has one.
WORDS = {
    "guard": ("scratch_directory.py",),
    "engine": ("arl.engine.embedded.server", "server_process.py"),
    "trainer": ("arl.train.rank",),
    "reward worker": ("arl.reward.worker",),
    "evaluator": ("arl.run.evaluation.beside",),
    "warm-up": ("arl.train.sft",),
    "runner": ("child.py",),  # in front of a process that has not begun yet
    "controller": ("arl.cli",),
}
WORKER = "reward worker"
EVALUATION_ENGINE = "evaluation engine"
OTHER = "other"
OWN_SHARED_MEMORY = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh")


@dataclass(frozen=True)
class RunProcess:
    """Name one process of a run.

    Args:
        role: a key of WORDS, WORKER or OTHER.
        number: of an engine's seat or of a rank; None: the role has none.
    """

    role: str
    process: psutil.Process
    number: int | None = None

    def __str__(self) -> str:
        number = "" if self.number is None else f" {self.number}"
        return f"{self.role}{number} (pid {self.process.pid})"


def with_own_shared_memory() -> None:
    """Replace this program by itself in a mount namespace with a /dev/shm of its own, as root, unless it has one.

    So whatever lies there belongs to runs that this program has started.
    """
    if os.environ.get(MARK) is None:
        os.environ[MARK] = "apart"
        os.execvp(OWN_SHARED_MEMORY[0], [*OWN_SHARED_MEMORY, *sys.orig_argv])


def processes_of_run(mark: str) -> list[RunProcess]:
    """Return the processes whose environment has MARK=`mark`, without zombies, by age."""
    found = [named(process) for process in psutil.process_iter() if is_marked(process, mark)]
    alive = [each for each in found if each is not None]
    return sorted(alive, key=lambda each: each.process.create_time())


def is_marked(process: psutil.Process, mark: str) -> bool:
    """Return whether a process belongs to the run of `mark`, and runs."""
    try:
        return process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):  # it has just ended
        return False


def named(process: psutil.Process) -> RunProcess | None:
    """Return a process with its role; None: it has just ended."""
    try:
        words = process.cmdline()
        parent = process.parent()
        above = [] if parent is None else parent.cmdline()
        environment = process.environ()
    except (psutil.Error, OSError):
        return None
    role = role_of(words)
    if role == "reward worker" and role_of(above) == "reward worker":
        role = WORKER
    if role == "engine" and role_of(above) == "evaluator":
        role = EVALUATION_ENGINE
    number = environment.get("RANK") if role == "trainer" else None
    return RunProcess(role, process, None if number is None else int(number))


def role_of(words: Sequence[str]) -> str:
    """Return the role of a command line.

    >>> role_of(["python", "-m", "arl.train.rank"]), role_of(["sleep", "5"])
    ('trainer', 'other')
    """
    names = {Path(word).name for word in words}
    for role, known in WORDS.items():
        if names.intersection(known):
            return role
    return OTHER


def start_marked(argv: Sequence[str], mark: str, directory: Path, output: Path) -> subprocess.Popen[bytes]:
    """Start a run whose processes carry `mark`, and whose temporary files lie in a directory of their own."""
    temporary = directory / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = {**os.environ, MARK: mark, "TMPDIR": str(temporary), "ARL_CACHE": str(directory / "cache")}
    with output.open("ab") as file:
        return subprocess.Popen(
            argv, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
