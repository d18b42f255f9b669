"""Time what the trainer waits for before a step."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Literal

from arl.clock import now
from arl.types import StepWaits


class WaitTimer:
    """Sum the waits of one step by their cause: a field of StepWaits."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()

    @contextlib.contextmanager
    def waiting_for(self, cause: Literal["groups", "bound", "device"]) -> Iterator[None]:
        """Count the seconds of the block."""
        began = now()
        yield
        self._seconds[cause] += now() - began  # type: ignore[assignment]

    def waits(self) -> StepWaits:
        """Return the sums."""
        return StepWaits(**self._seconds)
