"""Count how often a server was lost of late, so that a week's run does not end with its fourth loss."""

from collections import deque

RESTART_WINDOW = 3600.0  # seconds


class RecentLosses:
    """Count losses within a window.

    Servers that were lost before they served belong to the loss before them, however long their starts took: a server
    that can never be started again must come to an end.

    Args:
        most: losses that any window may hold.
        seconds: length of the window.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._times: deque[float] = deque()

    def add(self, at: float, had_served: bool) -> None:
        """Count a loss at `at` of the running clock."""
        while had_served and self._times and self._times[0] <= at - self._seconds:
            self._times.popleft()
        self._times.append(at)

    @property
    def are_too_many(self) -> bool:
        """Return whether the newest loss is one more than its window may hold."""
        return len(self._times) > self._most
