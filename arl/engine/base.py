"""The engine seam: what the controller asks of anything that generates.

pause() ─► update_weights(update) ─► resume()      a swap while requests are open: they stay open, keep their
                                                   tokens, and continue under the new weights
"""

from collections.abc import AsyncIterator
from typing import Protocol

from arl.types import GenerateRequest, Increment, SwapReport, WeightUpdate


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
