"""Bring together the engines that load a version in one swap. Torch-free.

engine A: arrive(work) ─┐
engine B: arrive(work) ─┴─► all that have not left are here ─► work([A, B]), once ─► its outcome for each of them
engine C: leave()       ─► nobody waits for it any more
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

M = TypeVar("M")  # an engine; hashable
Failures = dict[M, Exception]  # what failed, by engine; the others have succeeded
Work = Callable[[Sequence[M]], Awaitable[Failures[M]]]


class CommonSwap(Generic[M]):
    """Let several engines wait for each other, and do once what concerns all of them.

    Every engine that has not left arrives for the same work, in the same order.

    Args:
        expected: number of engines.
    """

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._waiting: dict[M, asyncio.Future[None]] = {}
        self._work: Work[M] | None = None
        self._task: asyncio.Task[None] | None = None

    async def arrive(self, engine: M, work: Work[M]) -> None:
        """Wait until all engines have arrived or left; then `work` is done for those that are here.

        Raises:
            Exception: what `work` reports for this engine, or what it raised.
        """
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[engine] = outcome
        self._work = work
        self._start_if_complete()
        try:
            await outcome
        finally:
            self._waiting.pop(engine, None)  # a caller that was cancelled

    def leave(self) -> None:
        """Note that one more engine takes no further part, because it has failed or is done."""
        self._expected -= 1
        self._start_if_complete()

    async def close(self) -> None:
        """Cancel the work, if it still goes on because its callers were cancelled."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def _start_if_complete(self) -> None:
        if len(self._waiting) < self._expected:
            return
        here = {engine: outcome for engine, outcome in self._waiting.items() if not outcome.cancelled()}
        self._waiting = {}
        if here:
            assert self._work is not None
            self._task = asyncio.create_task(_run(self._work, here))


async def _run(work: Work[M], here: dict[M, asyncio.Future[None]]) -> None:
    """Do the work, and give each engine its outcome."""
    try:
        failures = await work(list(here))
    except Exception as error:
        failures = dict.fromkeys(here, error)
    for engine, outcome in here.items():
        if outcome.done():  # its caller was cancelled
            continue
        if engine in failures:
            outcome.set_exception(failures[engine])
        else:
            outcome.set_result(None)
