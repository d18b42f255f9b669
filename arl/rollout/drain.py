"""Let everything that generates finish before weights are loaded, so that no episode spans two versions.

episodes ─► episode(): waits while the drain is closed ─► env runs ─► …
close(): nobody enters any more, and returns when everybody has left ─► load ─► reopen()
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from arl.clock import outer_deadline


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
