"""Measure how long an engine is in use: the seconds with at least one request open and no pause."""

from arl.clock import now


class BusyMeter:
    """Counts the seconds of the clock in which an engine has work and may do it."""

    def __init__(self) -> None:
        self._seconds = 0.0  # until `_since`
        self._since = 0.0
        self._open = 0
        self._paused = False

    @property
    def seconds(self) -> float:
        return self._seconds + (now() - self._since if self._running else 0.0)

    @property
    def _running(self) -> bool:
        return self._open > 0 and not self._paused

    def _settle(self) -> None:
        time = now()
        if self._running:
            self._seconds += time - self._since
        self._since = time

    def opened(self, count: int) -> None:
        """Count `count` more open requests, or fewer when it is negative."""
        self._settle()
        self._open += count

    def pause(self, paused: bool) -> None:
        self._settle()
        self._paused = paused
