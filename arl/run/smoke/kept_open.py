"""Keep a side of the system open in a task of its own, so that its failure ends only the stages that use it.

opening() ─► task: async with … as value ─► use(work): work(value), or what has ended the side meanwhile
                   ▲                                                         │
                   └── a process of it dies ─► the task ends with the reason ┘
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

from arl.errors import RunError
from arl.run.failures import reported_failures

T = TypeVar("T")
R = TypeVar("R")
DEATH_SECONDS = 3.0  # a broken connection is noticed before the death that broke it


class KeptOpen(Generic[T]):
    """Hold an async context open until it is closed or fails.

    ranks = KeptOpen("trainer", lambda: open_ranks(trial))
    loss = await ranks.use(train_once)
    await ranks.close()

    Args:
        name: of the task, for messages.
        opening: makes the context, which is entered at once.
    """

    def __init__(self, name: str, opening: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self.name = name
        self._opened: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._released = asyncio.Event()
        self._task = asyncio.create_task(self._hold(opening), name=name)

    @property
    def failure(self) -> BaseException | None:
        """Return what ended the context before it was closed; None: it is opening or open."""
        if not self._task.done() or self._task.cancelled():
            return None
        return self._task.exception()

    async def opened(self) -> T | None:
        """Wait until the context is open, and return its value; None: it failed."""
        waits: set[asyncio.Future[Any]] = {self._opened, self._task}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return self._opened.result() if self._opened.done() and not self._task.done() else None

    async def use(self, work: Callable[[T], Awaitable[R]]) -> R:
        """Wait until the context is open, and return `work(value)`.

        Raises:
            Exception: what ended the context, if it ends meanwhile; else what `work` raised.
        """
        using = asyncio.create_task(self._work(work), name=f"use of {self.name}")
        try:
            await asyncio.wait({using, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if using.done() and isinstance(using.exception(), RunError):
                await asyncio.wait({self._task}, timeout=DEATH_SECONDS)
            if self.failure is not None:
                raise self.failure
            return await using
        finally:
            using.cancel()
            await asyncio.wait({using})

    async def close(self) -> None:
        """Leave the context. What ended it before is not raised again.

        Raises:
            Exception: leaving it failed.
        """
        was_open = not self._task.done()
        self._released.set()
        if not self._opened.done():
            self._task.cancel()
        try:
            await asyncio.wait({self._task})
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait({self._task})
            raise
        failure = self.failure
        if was_open and failure is not None:
            raise failure

    async def _work(self, work: Callable[[T], Awaitable[R]]) -> R:
        value = await asyncio.shield(self._opened)
        return await work(value)

    async def _hold(self, opening: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        async with reported_failures(), opening() as value:
            self._opened.set_result(value)
            await self._released.wait()


async def close_all(sides: Sequence[KeptOpen[Any]]) -> None:
    """Close all of them at once, and wait for each, also if one fails or this is cancelled.

    Raises:
        Exception: leaving one failed.
    """
    closing = [side.close() for side in sides]
    for result in await asyncio.gather(*closing, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
