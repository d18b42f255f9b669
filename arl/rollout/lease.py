"""Lend the devices that generation and training may share; see `Lease` in arl.rollout.base.

Without interruptions all episodes end before weights are loaded, so that none spans two versions:

    episodes ─► episode(): waits while the drain is closed ─► env runs ─► …
    close(): no episode begins, and it returns when all have ended ─► load ─► reopen()
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from arl.clock import outer_deadline
from arl.engine.base import Engine


class Drain:
    """Count the episodes whose env runs, and keep new ones waiting while it is closed. Several may close it."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._running = 0

    @contextlib.asynccontextmanager
    async def episode(self) -> AsyncIterator[None]:
        """Run one episode in this context; first waits while the drain is closed."""
        while not self._open.is_set():  # it may be closed again before this task runs
            await self._open.wait()
        self._running += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._empty.set()

    async def close(self, seconds: float) -> None:
        """Let no episode begin, and wait until all have ended; `reopen` undoes it.

        Raises:
            DeadlineError: that took longer than `seconds`.
        """
        self._open.clear()

        def what() -> str:
            return f"{self._running} episodes to end before weights are loaded"

        async with outer_deadline(seconds, "publisher", what):
            await self._empty.wait()

    def reopen(self) -> None:
        """Let the episodes begin that wait."""
        self._open.set()


class NoLease:
    """Implement Lease for mode disaggregated: both sides have devices of their own, so nobody waits."""

    async def acquire(self) -> None:
        """Return at once."""

    async def release(self) -> None:
        """Return at once."""


class SharedDeviceLease:
    """Implement Lease for mode collocated: the engines sleep from the start of a step until its weights are loaded."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._turn = asyncio.Lock()

    async def acquire(self) -> None:
        """Wait for the previous step's weights to be loaded, then pause the engines."""
        await self._turn.acquire()
        await self._engine.pause()

    async def release(self) -> None:
        """Let the engines generate again."""
        await self._engine.resume()
        self._turn.release()


class DrainedDeviceLease(SharedDeviceLease):
    """Implement Lease for mode collocated without interruptions: the trainer's turn begins when no episode generates.

    Whoever loads the weights reopens the drain before the turn ends.

    Args:
        seconds: deadline of the open episodes.
    """

    def __init__(self, engine: Engine, drain: Drain, seconds: float) -> None:
        super().__init__(engine)
        self._drain = drain
        self._seconds = seconds

    async def acquire(self) -> None:
        """Wait for the open episodes as well; see SharedDeviceLease."""
        await self._turn.acquire()
        await self._drain.close(self._seconds)
        await self._engine.pause()
