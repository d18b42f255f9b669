"""Learn how long calls of a reward function take, and after which time one counts as slow."""

import statistics
from collections import deque

FIRST_PATIENCE = 0.25  # seconds, as long as no call was answered
LEAST_PATIENCE = 0.05
PATIENCE_IN_MEDIANS = 5.0
REMEMBERED = 32  # durations of answered calls


class Patience:
    """Remember how long the last calls took.

    >>> patience = Patience()
    >>> patience.seconds
    0.25
    >>> patience.learn(0.2)
    >>> patience.seconds
    1.0
    """

    def __init__(self) -> None:
        self._durations: deque[float] = deque(maxlen=REMEMBERED)

    def learn(self, seconds: float) -> None:
        """Take the time that an answered call was at work."""
        self._durations.append(seconds)

    @property
    def seconds(self) -> float:
        """Return the time after which a call is left behind."""
        if not self._durations:
            return FIRST_PATIENCE
        return max(LEAST_PATIENCE, PATIENCE_IN_MEDIANS * statistics.median(self._durations))
