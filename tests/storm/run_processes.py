"""Find the processes of one run on this machine, name their roles, and look for what a run has left behind.

/proc ─► those whose environment holds the mark, however deep ─► role, by their command line
after its end: environment of every process · /dev/shm of our own · temporary directory of the run ─► what is left
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from arl.files import remove_any
from tests.processes import MARK

# Words of which a command line of each role has one.
WORDS = {
    "guard": ("guard",),  # the name that its shell is given
    "engine": ("arl.engine.embedded.server", "server_process.py"),
    "trainer": ("arl.train.rank",),
    "reward worker": ("arl.reward.worker",),
    "evaluator": ("eval",),
    "warm-up": ("arl.train.warmup",),
    "runner": ("child.py",),  # in front of a process that has not begun yet
    "controller": ("arl.cli",),
}
OTHER = "other"
OWN_SHARED_MEMORY = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh")

SHARED_MEMORY = Path("/dev/shm")
LEFT_SECONDS = 1.0  # after the end of the controller: then nothing may be left
POLL_SECONDS = 0.05
CACHES = ("torchinductor_",)  # begin the names of what a library keeps for all runs of this user


@dataclass(frozen=True)
class RunProcess:
    """Name one process of a run.

    Args:
        role: a key of WORDS, or OTHER.
    """

    role: str
    process: psutil.Process

    def __str__(self) -> str:
        return f"{self.role} (pid {self.process.pid})"


def with_own_shared_memory() -> None:
    """Replace this program by itself in a mount namespace with a /dev/shm of its own, as root, unless it has one.

    So whatever lies there belongs to runs that this program has started.
    """
    if os.environ.get(MARK) is None:
        os.environ[MARK] = "apart"
        os.execvp(OWN_SHARED_MEMORY[0], [*OWN_SHARED_MEMORY, *sys.orig_argv])


def processes_of_run(mark: str) -> list[RunProcess]:
    """Return the processes whose environment has MARK=`mark`, without zombies, by age."""
    found = []
    for process in psutil.process_iter(["create_time"]):
        with contextlib.suppress(psutil.Error, OSError):  # it has just ended
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(RunProcess(role_of(process.cmdline()), process))
    return sorted(found, key=lambda each: each.process.info["create_time"])


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


def look_for_remains(mark: str, temporary: Path, patience: float) -> list[str]:
    """Return what a run has left behind one second after its end; then remove it.

    Args:
        patience: factor of the second, for a machine that is busy otherwise.
    """
    until = time.monotonic() + LEFT_SECONDS * patience
    while True:
        processes = processes_of_run(mark)
        places = [path for place in (SHARED_MEMORY, temporary) for path in place.iterdir()]
        files = [path for path in places if not path.name.startswith(CACHES)]
        if not (processes or files) or time.monotonic() > until:
            break
        time.sleep(POLL_SECONDS)
    for each in processes:
        each.process.kill()
    for path in files:
        remove_any(path)
    return [*map(str, processes), *map(str, files)]
