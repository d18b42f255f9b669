"""Measure how long an engine is in use: the seconds with at least one request open and no pause."""

from arl.clock import now


class BusyMeter:
    """Count the seconds of the clock in which an engine has work and may do it."""

    def __init__(self) -> None:
        self._seconds = 0.0  # until `_since`
        self._since = 0.0
        self._open = 0
        self._paused = False

    @property
    def seconds(self) -> float:
        """Return the seconds until now."""
        if not self._running:
            return self._seconds
        return self._seconds + (now() - self._since)

    @property
    def _running(self) -> bool:
        return self._open > 0 and not self._paused

    def _settle(self) -> None:
        """Add what has passed since the last change; the next change counts from now."""
        time = now()
        if self._running:
            self._seconds += time - self._since
        self._since = time

    def opened(self, count: int) -> None:
        """Count `count` more open requests, or fewer when it is negative."""
        self._settle()
        self._open += count

    def pause(self, paused: bool) -> None:
        """Count nothing from now on, or count again."""
        self._settle()
        self._paused = paused
