"""The engine seam: what the controller asks of anything that generates.

pause() ─► update_weights(update) ─► resume()      a swap while requests are open: they stay open, keep their
                                                   tokens, and continue under the new weights
"""

from collections.abc import AsyncIterator
from typing import Protocol

from msgspec import Struct

from arl.types import GenerateRequest, Increment, SwapReport, WeightUpdate


class Load(Struct, frozen=True):
    """What one replica has to do, and how much of it it can do at once."""

    running: int  # requests
    waiting: int
    slots: int  # requests it decodes together
    tokens: int  # that its requests, the waiting ones too, hold in its cache or will bring
    capacity: int  # tokens of its cache

    def free(self, requests: int, tokens: int) -> float:
        """Free share, of slots or of cache, whichever is less, when so much more has come; below 0, some must wait.

        >>> Load(running=6, waiting=0, slots=8, tokens=100, capacity=1000).free(requests=1, tokens=400)
        0.125
        """
        return 1.0 - max((self.running + self.waiting + requests) / self.slots, (self.tokens + tokens) / self.capacity)


IDLE = Load(running=0, waiting=0, slots=1, tokens=0, capacity=1)  # for one that has told nothing


class Engine(Protocol):
    @property
    def loaded_version(self) -> int:
        """Oldest version loaded on any live replica; never decreases."""

    @property
    def busy_seconds(self) -> float:
        """Seconds since the start with at least one request open and no pause."""

    def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
        """Yield increments as they are produced; the last one has a finish reason, "stop" or "length".

        Closing the iterator aborts the request. Pauses and swaps are invisible but for the versions.

        Raises:
            EngineError: an id outside the vocabulary, a request longer than the context.
            EngineLost: the engine is gone; what it has yielded stands.
        """

    async def pause(self) -> None:
        """Stop generating; open requests stay open. Idempotent."""

    async def resume(self) -> None:
        """Generate again. Idempotent."""

    async def update_weights(self, update: WeightUpdate) -> SwapReport:
        """Load `update` on every replica, pausing around it if the engine is not paused already."""


class ReplicaEngine(Engine, Protocol):
    """An engine that may be one of several."""

    async def report(self) -> Load:
        """Its load now, or a few passes ago."""
