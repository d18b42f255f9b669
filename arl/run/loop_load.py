"""Measure how busy the controller's event loop is, for status.json."""

import time

SHORTEST_SECONDS = 0.5  # between two readings; a shorter time says little


class LoopLoad:
    """Measure the share of a core that the event loop takes. It has one thread, so it ends at 1."""

    def __init__(self) -> None:
        self._cpu = time.thread_time()
        self._at = time.monotonic()
        self._share: float | None = None

    def read(self) -> float | None:
        """Return the share since the last reading; None: nothing is measured yet. Must run in the loop's own thread."""
        cpu = time.thread_time()
        at = time.monotonic()
        seconds = at - self._at
        if seconds >= SHORTEST_SECONDS:
            self._share = (cpu - self._cpu) / seconds
            self._cpu = cpu
            self._at = at
        return self._share
