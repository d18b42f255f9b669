"""Count what each replica of a router is given, and hold the replicas by seat. Seats come and go. Torch-free.

open ─► an empty seat ─► fill ─► a Replica ─► empty: it is lost ─► fill: the next one ─► … ─► close
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from arl.clock import now
from arl.engine.base import IDLE, Load, ReplicaEngine
from arl.errors import RunError


@dataclass(eq=False)
class Replica:
    """Count what one engine is given, from the moment it takes a seat until it is lost."""

    engine: ReplicaEngine
    name: str = "engine"  # role of its process
    is_guest: bool = False  # somebody else started it: an error of it is its loss, and never the run's end
    since: float = field(default_factory=now)  # clock seconds at which it took its seat
    open: int = 0  # requests
    load: Load = IDLE  # as it reported
    reported_at: float = -math.inf
    requests: int = 0  # given to it since, less those that have ended
    tokens: int = 0  # given to it since
    cut_short: int = 0  # requests that went on elsewhere when it was lost
    loss: RunError | None = None
    lost: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def free(self) -> float:
        """Return the free share of its capacity; see Load.free."""
        unreported = self.open - self.load.running - self.load.waiting  # a report may lack what was just sent
        requests = max(self.requests, unreported)
        return self.load.free(requests, self.tokens)

    @property
    def has_reported(self) -> bool:
        """Return whether `load` is its own, and not what is assumed of one that was never asked."""
        return self.load is not IDLE

    def record(self, load: Load) -> None:
        """Take its report; what was given to it before is part of that."""
        self.load = load
        self.reported_at = now()
        self.requests = 0
        self.tokens = 0


@dataclass(eq=False)
class _Seat:
    """Hold one replica at a time."""

    replica: Replica | None = None  # None: empty
    was_filled: bool = False


class ReplicaSeats:
    """Hold the seats of a router by number. A number is never used again.

    Args:
        engines: one for each seat; None: the seat is empty.
    """

    def __init__(self, engines: Sequence[ReplicaEngine | None]) -> None:
        self._seats: dict[int, _Seat] = {}
        self._next = 0
        self._ended_seconds = 0.0  # in which replicas that are gone were busy
        self._mean_before = 0.0  # busy_seconds when the number of seats last changed
        self._sum_before = 0.0  # _busy_sum at that moment
        self.restarts = 0  # how often a seat was filled again
        for engine in engines:
            seat = self.open()
            if engine is not None:
                self.fill(seat, engine)

    @property
    def numbers(self) -> list[int]:
        """Return the numbers of the seats, oldest first."""
        return list(self._seats)

    @property
    def live(self) -> list[Replica]:
        """Return the replicas that have a seat."""
        return [seat.replica for seat in self._seats.values() if seat.replica is not None]

    @property
    def busy_seconds(self) -> float:
        """Return the seconds in which a seat was busy, as the mean over the seats that there were at each moment.

        An empty seat is idle. The mean never decreases, because a change of the number of seats begins a new sum.
        """
        since = self._busy_sum - self._sum_before
        return self._mean_before + since / max(len(self._seats), 1)

    @property
    def _busy_sum(self) -> float:
        return self._ended_seconds + sum(replica.engine.busy_seconds for replica in self.live)

    def open(self) -> int:
        """Add an empty seat, and return its number."""
        self._begin_new_sum()
        number = self._next
        self._next += 1
        self._seats[number] = _Seat()
        return number

    def close(self, number: int) -> None:
        """Take away an empty seat."""
        assert self._seats[number].replica is None, f"seat {number} is not empty"
        self._begin_new_sum()
        del self._seats[number]

    def fill(self, number: int, engine: ReplicaEngine, guest: str | None = None) -> Replica:
        """Seat `engine`; `guest` is its name, if somebody else has started it."""
        seat = self._seats[number]
        assert seat.replica is None, f"seat {number} is taken"
        self._ended_seconds -= engine.busy_seconds  # before it was here
        name = f"engine-{number}" if guest is None else guest
        seat.replica = Replica(engine, name, is_guest=guest is not None)
        self.restarts += seat.was_filled
        seat.was_filled = True
        return seat.replica

    def empty(self, replica: Replica) -> int:
        """Take the seat of `replica` from it, and return the number of the seat."""
        number = next(number for number, seat in self._seats.items() if seat.replica is replica)
        self._ended_seconds += replica.engine.busy_seconds
        self._seats[number].replica = None
        return number

    def replica(self, number: int) -> Replica | None:
        """Return who has seat `number`; None: nobody, or there is no such seat."""
        seat = self._seats.get(number)
        return None if seat is None else seat.replica

    def _begin_new_sum(self) -> None:
        self._mean_before = self.busy_seconds
        self._sum_before = self._busy_sum
