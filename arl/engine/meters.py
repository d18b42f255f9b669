"""Measure how long an engine is busy, and how long the parts of its pause take. Torch-free."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Literal

from arl.clock import now
from arl.types import PauseParts


class Stopwatch(ABC):
    """Count the seconds of the clock in which a condition holds."""

    def __init__(self) -> None:
        self._seconds = 0.0  # until `_since`
        self._since = 0.0
        self._open = 0

    @property
    def seconds(self) -> float:
        """Return the seconds until now."""
        return self._seconds + (now() - self._since if self._counts else 0.0)

    @property
    @abstractmethod
    def _counts(self) -> bool:
        """Return whether the condition holds."""

    def opened(self, count: int) -> None:
        """Count `count` more open requests, or fewer when it is negative."""
        self._settle()
        self._open += count

    def _settle(self) -> None:
        """Add what has passed since the last change; the next change counts from now."""
        self._seconds = self.seconds
        self._since = now()


class BusyMeter(Stopwatch):
    """Count the seconds with at least one request open and no pause."""

    def __init__(self) -> None:
        super().__init__()
        self._paused = False

    @property
    def _counts(self) -> bool:
        return self._open > 0 and not self._paused

    def pause(self, paused: bool) -> None:
        """Count nothing from now on, or count again."""
        self._settle()
        self._paused = paused


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
