"""Time the parts of one engine's pause. Torch-free."""

import contextlib
from collections.abc import Iterator
from typing import Literal

from arl.clock import now
from arl.types import PauseParts

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
