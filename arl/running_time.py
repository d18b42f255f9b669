"""Measure the time in which this process could act: the clock stands still while the process is stopped.

A process may be stopped by Ctrl-Z, SIGSTOP, a debugger, a frozen container or a paused machine. When it goes on, every
deadline of its own has passed, although nobody else was late. So its event loop counts on this clock instead:

    a gap: nobody has read the clock for LATE_SECONDS, although a loop reads it every BEAT_SECONDS
        ├ slow: on a core, or ready to run and without one     counts half, because others could not be heard
        └ stopped, or asleep in the kernel: neither            does not count, but for BEAT_SECONDS

No deadline is postponed for ever. The clock counts at least half of the time in which the process runs or could run,
so a deadline of S seconds passes within 2 · S seconds of it, however slow the machine is. And each gap counts
BEAT_SECONDS, so no deadline outlives S / BEAT_SECONDS gaps, whatever they come from.

Linux does not count the sleep of the whole machine (a laptop's lid) on the monotonic clock, so no deadline needs a
correction for it. The clock that counts it shows it, and it is reported like a stop.
"""

import contextlib
import time
from collections.abc import Callable
from typing import NamedTuple

BEAT_SECONDS = 0.5  # a loop reads the clock at least so often
LATE_SECONDS = 2.0  # without a reading: a gap
REPORTED_SECONDS = 5.0  # of a pause; a shorter one matters to nobody


class Counts(NamedTuple):
    """Hold what the kernel has counted, in seconds.

    Args:
        slow: in which this thread was on a core or waited for one; None: this kernel does not count.
        asleep: in which the whole machine slept.
    """

    slow: float | None
    asleep: float


class RunningClock:
    """Count the seconds in which this process was not stopped. One thread reads it.

    Args:
        start: what it reads at the beginning.
        on_pause: called with the seconds of each pause of REPORTED_SECONDS at least, when the clock is read next.
        monotonic: reads the clock from which gaps are left out.
        counts: reads the kernel's counts.
    """

    def __init__(
        self,
        start: float = 0.0,
        on_pause: Callable[[float], object] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        counts: Callable[[], Counts] | None = None,
    ) -> None:
        self._on_pause = on_pause
        self._monotonic = monotonic
        self._read_counts = counts or kernel_counts
        self._last = monotonic()  # reading
        self._zero = self._last - start
        self._counts = self._read_counts()
        self._counted_at = self._last

    def time(self) -> float:
        """Return the seconds; never less than before."""
        at = self._monotonic()
        if at - self._counted_at > BEAT_SECONDS:
            self._account(at)
        self._last = at
        return at - self._zero

    def _account(self, at: float) -> None:
        """Read the kernel's counts again, and set the clock back by the part of a gap that does not count."""
        before = self._counts
        self._counts = self._read_counts()
        self._counted_at = at
        gap = at - self._last
        pause = self._counts.asleep - before.asleep
        if gap > LATE_SECONDS:
            if before.slow is None or self._counts.slow is None:  # a stop cannot be told from a wait for a core
                slow = gap
            else:
                slow = min(self._counts.slow - before.slow, gap)
            counted = min(gap, BEAT_SECONDS + slow / 2)
            self._zero += gap - counted
            pause += gap - counted
        if pause >= REPORTED_SECONDS and self._on_pause is not None:
            self._on_pause(pause)


def kernel_counts() -> Counts:
    """Read what Linux counts of the calling thread and of the machine."""
    asleep = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    with contextlib.suppress(OSError), open("/proc/thread-self/schedstat") as file:
        on_core, without_core, _ = file.read().split()  # nanoseconds, nanoseconds, turns
        if int(on_core) > 0:
            return Counts((int(on_core) + int(without_core)) * 1e-9, asleep)
    return Counts(None, asleep)
