"""Measure how long a condition holds, and how long the parts of a pause or of a wait take. Torch-free."""

import contextlib
from collections import defaultdict
from collections.abc import Iterator

from arl.clock import now


class Stopwatch:
    """Count the seconds of the clock in which a condition holds."""

    def __init__(self) -> None:
        self._seconds = 0.0  # until `_since`
        self._since = 0.0
        self._runs = False

    @property
    def seconds(self) -> float:
        """Return the seconds until now."""
        return self._seconds + (now() - self._since if self._runs else 0.0)

    def run(self, holds: bool) -> None:
        """Count from now on if the condition holds, and nothing otherwise."""
        self._seconds = self.seconds
        self._since = now()
        self._runs = holds


class PartTimer:
    """Add up seconds by what they pass for, such as the parts of a pause: PauseParts(**timer.seconds)."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the seconds of this context as part of `name`."""
        start = now()
        try:
            yield
        finally:
            self.seconds[name] += now() - start
