"""Find processes that a test has started, and those that outlive it."""

from collections.abc import Iterable

import psutil

MARK = "ARL_TEST"  # in the environment of a test's processes, however deep


def left_behind(mark: str) -> list[psutil.Process]:
    """Return the survivors among processes whose environment has MARK=`mark`."""
    return survivors(process for process in psutil.process_iter() if _mark(process) == mark)


def below(pid: int) -> list[int]:
    """Return the children of a process, and all below them."""
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def survivors(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that still run after 30 s, which is longer than any exit takes. A zombie does not run."""
    _, alive = psutil.wait_procs(processes, timeout=30)
    return [process for process in alive if _runs(process)]


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _mark(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARK)
    except psutil.Error:
        return None
