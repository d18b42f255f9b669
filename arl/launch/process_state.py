"""Say what the kernel has a process do, how it has ended, when it began and what memory it takes."""

import os
import signal
from collections import Counter

import psutil

RUNS = "runs"
STATES = {
    psutil.STATUS_STOPPED: "is stopped by a signal (SIGSTOP?)",
    psutil.STATUS_TRACING_STOP: "is stopped by a debugger",
    psutil.STATUS_DISK_SLEEP: "is blocked in the kernel, by a disk or a device",
    psutil.STATUS_ZOMBIE: "has exited",
}


def describe_state(state: str) -> str:
    """Return a phrase for what `state_of` returned; `RUNS` if nothing keeps the process from running."""
    return STATES.get(state, RUNS)


def state_of(pid: int) -> str:
    """Return psutil's word for the state of a process of this machine; empty if there is none of this id."""
    try:
        return str(psutil.Process(pid).status())
    except psutil.Error:
        return ""


def describe_exit(code: int) -> str:
    """Say how a process has ended, by its exit code.

    >>> describe_exit(1), describe_exit(-15), describe_exit(-37)
    ('exited with code 1', 'was killed by SIGTERM', 'was killed by signal 37')
    >>> describe_exit(-9)
    'was killed by SIGKILL, perhaps because memory was short'
    """
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal, most of which have no name
        name = f"signal {-code}"
    hint = ", perhaps because memory was short" if code == -signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


def started_at(pid: int) -> float | None:
    """Return when a process of this machine was started, seconds as time.time(); None: there is none of this id."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def session_members(session: int) -> list[psutil.Process]:
    """List the processes of a session."""
    return [process for process in psutil.process_iter() if _session_of(process.pid) == session]


def resident_bytes() -> Counter[int]:
    """Return the resident bytes of each session. Pages that processes share are counted for each of them.

    Every process that a launcher starts leads a session of its own (arl.launch.spawn), so its pid names the session.
    """
    sessions: Counter[int] = Counter()
    for process in psutil.process_iter(["memory_info"]):
        if process.info["memory_info"] is not None:  # else it has ended, or is another user's
            sessions[_session_of(process.pid)] += process.info["memory_info"].rss
    return sessions


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0
