"""Count what becomes of every admitted group, what a step waits for, and how long the engines have nothing to do.

admitted = trained + lost, by fate + in flight
"""

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from arl.clock import now
from arl.engine.meters import Stopwatch
from arl.types import StepWaits


@dataclass
class Ledger:
    """Count admitted groups: each is trained, lost with one fate (see arl.types), or still in flight."""

    admitted: int = 0  # groups so far: the group_id of the next one
    trained: int = 0
    lost: Counter[str] = field(default_factory=Counter)  # fate -> groups
    restarted_tokens: int = 0  # sampled by ended episodes that a resumed run began anew

    @property
    def in_flight(self) -> int:
        """Return the number of groups that are running, or finished and in the buffer."""
        return self.admitted - self.trained - self.lost.total()


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


class GateMeter:
    """Count the seconds in which admission is held back and no request is open."""

    def __init__(self) -> None:
        self._watch = Stopwatch()
        self._open = 0
        self._held = False

    @property
    def seconds(self) -> float:
        """Return the seconds until now."""
        return self._watch.seconds

    def opened(self, count: int) -> None:
        """Count `count` more open requests, or fewer when it is negative."""
        self._open += count
        self._watch.run(self._held and self._open == 0)

    def hold(self, held: bool) -> None:
        """Note whether the gate or the cap keeps groups that the run needs from starting."""
        self._held = held
        self._watch.run(self._held and self._open == 0)
