"""Measure how long an engine is busy, and how long the parts of its pause take. Torch-free."""

import contextlib
from collections.abc import Iterator
from typing import Literal

from arl.clock import now
from arl.types import PauseParts


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


PartName = Literal["drain", "flush", "transfer", "load", "resume"]


class PauseTimer:
    """Add up the seconds of each part of a pause."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def part(self, name: PartName) -> Iterator[None]:
        """Count the seconds of this context as part of `name`."""
        start = now()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + now() - start

    @property
    def parts(self) -> PauseParts:
        """Return the seconds until now."""
        return PauseParts(**self._seconds)
