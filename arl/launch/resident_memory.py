"""Measure the memory of processes on this machine, each with all that it has started.

/proc/*/stat ─► session and resident pages of each process ─► bytes by session

Every process that a launcher starts leads a session of its own (arl.launch.spawn), so its pid names the session.
The runner of a Slurm step imports this module, so it uses the standard library only.
"""

import contextlib
import os
import time
from collections import Counter
from pathlib import Path

MEASURE_SECONDS = 10.0  # from one measurement on another node to the next

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_SESSION = 3  # places in /proc/PID/stat, counted from the field after the name
_START = 19  # clock ticks since the machine was booted
_PAGES = 21


def resident_bytes() -> Counter[int]:
    """Return the resident bytes of each session. Pages that processes share are counted for each of them."""
    sessions: Counter[int] = Counter()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            fields = _fields(Path("/proc") / name)
            sessions[int(fields[_SESSION])] += int(fields[_PAGES]) * _PAGE_BYTES
    return sessions


def own_resident_bytes() -> int:
    """Return the resident bytes of this process alone."""
    return int(_fields(Path("/proc/self"))[_PAGES]) * _PAGE_BYTES


def started_at(pid: int) -> float | None:
    """Return when a process of this machine was started, seconds as time.time(); None: there is none of this id."""
    try:
        fields = _fields(Path(f"/proc/{pid}"))
    except OSError:
        return None
    seconds_since_boot = int(fields[_START]) / _TICKS_PER_SECOND
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + seconds_since_boot


def _fields(directory: Path) -> list[str]:
    stat = (directory / "stat").read_text()
    return stat.rpartition(")")[2].split()
