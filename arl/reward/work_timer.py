"""Measure how long a process has been at work: on a core, or asleep, but not while it was ready and had no core.

The kernel counts a wait for a core when it ends. While one may go on, this counts the time on a core, and the time
asleep that was seen before: that may be too little, and is never too much.
"""

import contextlib
import time
from typing import NamedTuple

RUNNABLE = "R"  # the state of a process that has a core, or waits for one


class _Look(NamedTuple):
    """Hold what the kernel says of a process at one moment, in seconds."""

    now: float
    on_core: float
    without_core: float  # ready to run, in waits that have ended
    is_ready: bool


class WorkTimer:
    """Time the calls of one process, one after the other."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.start()

    def start(self) -> None:
        """Begin to count from 0."""
        self._began = time.monotonic()
        self._begin = _counts(self._pid)
        self._asleep = 0.0

    def lap(self) -> float:
        """Return the seconds at work of a call that has ended, none of whose waits goes on, and begin from 0."""
        begin = self._begin
        self.start()
        return self._begin.now - begin.now - (self._begin.without_core - begin.without_core)

    @property
    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._began

    @property
    def seconds(self) -> float:
        """Return the seconds at work; by the clock where the kernel does not count them."""
        look = _look(self._pid)
        on_core = look.on_core - self._begin.on_core
        if look.is_ready:
            return on_core + self._asleep
        at_work = look.now - self._begin.now - (look.without_core - self._begin.without_core)
        self._asleep = at_work - on_core
        return at_work


def _look(pid: int) -> _Look:
    counts = _counts(pid)
    if counts.on_core == 0:  # this kernel does not count
        return counts
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        state = file.read().rpartition(")")[2].split()[0]
        return counts._replace(is_ready=state == RUNNABLE)
    return counts


def _counts(pid: int) -> _Look:
    """Return a look without the state, which takes half the time."""
    now = time.monotonic()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/schedstat") as file:
        on_core, without_core, _ = file.read().split()  # nanoseconds, nanoseconds, turns
        return _Look(now, int(on_core) * 1e-9, int(without_core) * 1e-9, is_ready=False)
    return _Look(now, 0.0, 0.0, is_ready=False)
