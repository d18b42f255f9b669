"""Lend the devices that generation and training may share; see `Lease` in arl.rollout.base."""

import asyncio

from arl.engine.base import Engine
from arl.rollout.drain import Drain


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
