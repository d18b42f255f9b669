"""Measure how long the engines had nothing to do because no group might start."""

from arl.clock import now


class GateMeter:
    """Count the seconds in which admission is held back and no request is open."""

    def __init__(self) -> None:
        self._seconds = 0.0  # until `_since`
        self._since = 0.0
        self._open = 0
        self._held = False

    @property
    def seconds(self) -> float:
        """Return the seconds until now."""
        if not self._counts:
            return self._seconds
        return self._seconds + (now() - self._since)

    @property
    def _counts(self) -> bool:
        return self._held and self._open == 0

    def opened(self, count: int) -> None:
        """Count `count` more open requests, or fewer when it is negative."""
        self._settle()
        self._open += count

    def hold(self, held: bool) -> None:
        """Note whether the gate or the cap keeps groups that the run needs from starting."""
        self._settle()
        self._held = held

    def _settle(self) -> None:
        """Add what has passed since the last change; the next change counts from now."""
        time = now()
        if self._counts:
            self._seconds += time - self._since
        self._since = time
