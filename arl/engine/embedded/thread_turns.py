"""Let one caller at a time work in a thread, which goes on when its caller goes away.

caller ─► its turn ─► a thread ─► the caller goes on, with what the thread has made ─► the next one's turn
                          └─► the caller has gone: the thread ends ──────────────────────────┘
"""

import asyncio
from collections.abc import Callable
from typing import Any, ParamSpec, Self, TypeVar

from arl.clock import in_thread
from arl.errors import EngineError

T = TypeVar("T")
P = ParamSpec("P")


class ThreadTurns:
    """Hold the turn of one caller, until it ends and so does its thread.

    async with turns:
        state = await turns.run(read_weights, path)
        await load(state)

    Args:
        what: it is that only one may use, for the message of an error
        seconds: after which a caller waits no longer for its turn
    """

    def __init__(self, what: str, seconds: float) -> None:
        self._what = what
        self._seconds = seconds
        self._lock = asyncio.Lock()
        self._thread: asyncio.Task[Any] | None = None  # of the caller whose turn it is

    async def __aenter__(self) -> Self:
        """Wait for the turn.

        Raises:
            EngineError: it does not come in time.
        """
        try:
            async with asyncio.timeout(self._seconds):
                await self._lock.acquire()
        except TimeoutError as error:
            raise EngineError(f"{self._what}: others still read or replace them after {self._seconds:g} s") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        thread = self._thread
        self._thread = None
        if thread is None or thread.done():
            self._lock.release()
        else:  # the caller was cancelled, which ends no thread, nor frees what it has read
            thread.add_done_callback(self._end_without_caller)

    def _end_without_caller(self, thread: asyncio.Task[Any]) -> None:
        if not thread.cancelled():
            thread.exception()  # marks it as seen: nobody is told that a thread has failed whose caller has gone
        self._lock.release()

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in a thread, in the caller's turn, and return its result or raise its exception."""
        assert self._lock.locked(), "run() is called in a turn"
        assert self._thread is None or self._thread.done(), "a turn has one thread at a time"
        thread = asyncio.create_task(in_thread(work, *args, **kwargs))
        self._thread = thread
        return await asyncio.shield(thread)
