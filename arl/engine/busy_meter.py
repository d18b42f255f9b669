"""Engine time in use: seconds with at least one request open and no pause."""

from arl.clock import now


class BusyMeter:
    def __init__(self) -> None:
        self._seconds, self._since = 0.0, 0.0
        self._open, self._paused = 0, False

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
        """`count` requests more, or fewer when negative."""
        self._settle()
        self._open += count

    def pause(self, paused: bool) -> None:
        self._settle()
        self._paused = paused
