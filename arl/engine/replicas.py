"""Count what each replica of a router is given, and hold the replicas by slot. Seats come and go. Torch-free.

open ─► an empty slot ─► fill ─► a Replica ─► empty: it is lost ─► fill: the next one ─► … ─► close
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
    """Count what one engine is given, from the moment it takes a slot until it is lost."""

    engine: ReplicaEngine
    name: str = "engine"  # role of its process
    is_external: bool = False  # somebody else started it: an error of it is its loss, and never the run's end
    since: float = field(default_factory=now)  # clock seconds at which it took its slot
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


class Replicas:
    """Hold the slots of a router by number. A number is never used again.

    Args:
        engines: one for each slot; None: the slot is empty.
    """

    def __init__(self, engines: Sequence[ReplicaEngine | None]) -> None:
        self._slots: dict[int, Replica | None] = {}  # None: empty
        self._were_filled: set[int] = set()
        self._next = 0
        self._ended_seconds = 0.0  # in which replicas that are gone were busy
        self._mean_before = 0.0  # busy_seconds when the number of slots last changed
        self._sum_before = 0.0  # _busy_sum at that moment
        self.restarts = 0  # how often a slot was filled again
        for engine in engines:
            slot = self.open()
            if engine is not None:
                self.fill(slot, engine)

    @property
    def live(self) -> list[Replica]:
        """Return the replicas that have a slot."""
        return [replica for replica in self._slots.values() if replica is not None]

    @property
    def busy_seconds(self) -> float:
        """Return the seconds in which a slot was busy, as the mean over the slots that there were at each moment.

        An empty slot is idle. The mean never decreases, because a change of the number of slots begins a new sum.
        """
        since = self._busy_sum - self._sum_before
        return self._mean_before + since / max(len(self._slots), 1)

    @property
    def _busy_sum(self) -> float:
        return self._ended_seconds + sum(replica.engine.busy_seconds for replica in self.live)

    def open(self) -> int:
        """Add an empty slot, and return its number."""
        self._begin_new_sum()
        number = self._next
        self._next += 1
        self._slots[number] = None
        return number

    def close(self, number: int) -> None:
        """Take away an empty slot."""
        assert self._slots[number] is None, f"slot {number} is not empty"
        self._begin_new_sum()
        del self._slots[number]

    def fill(self, number: int, engine: ReplicaEngine, external: str | None = None) -> Replica:
        """Put in `engine`; `external` is its name, if somebody else has started it."""
        assert self._slots[number] is None, f"slot {number} is taken"
        self._ended_seconds -= engine.busy_seconds  # before it was here
        name = f"engine-{number}" if external is None else external
        replica = Replica(engine, name, is_external=external is not None)
        self._slots[number] = replica
        self.restarts += number in self._were_filled
        self._were_filled.add(number)
        return replica

    def empty(self, replica: Replica) -> int:
        """Take the slot of `replica` from it, and return the number of the slot."""
        number = next(number for number, held in self._slots.items() if held is replica)
        self._ended_seconds += replica.engine.busy_seconds
        self._slots[number] = None
        return number

    def replica(self, number: int) -> Replica | None:
        """Return who has slot `number`; None: nobody, or there is no such slot."""
        return self._slots.get(number)

    def _begin_new_sum(self) -> None:
        self._mean_before = self.busy_seconds
        self._sum_before = self._busy_sum
