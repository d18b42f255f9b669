"""What is left of processes that were to end."""

from collections.abc import Iterable

import psutil

MARK = "ARL_TEST"  # in the environment of a test's processes, however deep


def left_behind(mark: str) -> list[psutil.Process]:
    """Survivors of those that began with MARK=`mark`."""
    return survivors(process for process in psutil.process_iter() if _mark(process) == mark)


def survivors(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that run on for longer than an end takes anywhere. One that only its parent has yet to bury does not."""
    return [process for process in psutil.wait_procs(processes, timeout=30)[1] if _runs(process)]


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
