"""Look for what a run has left behind, and how long that takes to vanish.

environment of every process · /dev/shm of our own · temporary directory of the run
"""

import time
from collections.abc import Callable
from pathlib import Path

import psutil

from arl.files import remove_any
from tests.storm.run_processes import processes_of_run

SHARED_MEMORY = Path("/dev/shm")
LEFT_SECONDS = 1.0  # after the end of the controller: then nothing may be left
LONGEST_SECONDS = 30.0
POLL_SECONDS = 0.05
CACHES = ("torchinductor_",)  # begin the names of what a library keeps for all runs of this user


def look_for_remains(mark: str, temporary: Path, patience: float) -> tuple[list[str], float]:
    """Return what a run has left behind one second after its end, and after how long nothing was left; then remove it.

    Args:
        patience: factor of the second, for a machine that is busy otherwise.
    """
    ended = time.monotonic()

    def find() -> list[str]:
        return remains(mark, temporary)

    found = _wait_until_empty(find, LEFT_SECONDS * patience)
    if not found:
        return [], round(time.monotonic() - ended, 2)
    _wait_until_empty(find, LONGEST_SECONDS)
    seconds = round(time.monotonic() - ended, 2)
    for each in processes_of_run(mark):
        each.process.kill()
    for path in files_left(temporary):
        remove_any(path)
    return found, seconds


def _wait_until_empty(find: Callable[[], list[str]], seconds: float) -> list[str]:
    """Return what is found when nothing is, or when so many seconds have passed."""
    until = time.monotonic() + seconds
    while (found := find()) and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    return found


def remains(mark: str, temporary: Path) -> list[str]:
    """Return what there is of a run now that only a running one may have."""
    processes = [f"{each}: {_state(each.process)}" for each in processes_of_run(mark)]
    files = [str(path) for path in files_left(temporary)]
    return processes + files


def files_left(temporary: Path) -> list[Path]:
    """Return the files in shared memory and in the run's temporary directory, without the caches of libraries."""
    places = [path for place in (SHARED_MEMORY, temporary) for path in place.iterdir()]
    return [path for path in places if not path.name.startswith(CACHES)]


def _state(process: psutil.Process) -> str:
    try:
        return f"{process.status()}, {' '.join(process.cmdline())[:120]}"
    except psutil.NoSuchProcess:
        return "has just ended"
