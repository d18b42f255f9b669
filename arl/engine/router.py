"""Several replicas as one Engine. Torch-free.

generate(request) ─► the replica that has its group, else the one with the fewest open requests
pause, resume, update_weights ─► all replicas at once
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

from arl.clock import now
from arl.engine.base import Engine
from arl.types import GenerateRequest, Increment, SwapReport, WeightUpdate


class Router:
    """An Engine over `replicas`, which whoever made them closes."""

    def __init__(self, replicas: Sequence[Engine]) -> None:
        assert replicas, "a router needs at least one replica"
        self._replicas = replicas
        self._open = [0] * len(replicas)
        self._homes: dict[str, tuple[int, int]] = {}  # affinity ─► (replica, its open requests)

    @property
    def loaded_version(self) -> int:
        return min(replica.loaded_version for replica in self._replicas)

    @property
    def busy_seconds(self) -> float:
        """Mean over the replicas."""
        return sum(replica.busy_seconds for replica in self._replicas) / len(self._replicas)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
        """See Engine.generate."""
        home = self._enter(request.affinity)
        increments = self._replicas[home].generate(request)
        try:
            async for increment in increments:
                yield increment
        finally:
            self._leave(request.affinity, home)
            await increments.aclose()  # type: ignore[attr-defined]

    def _enter(self, affinity: str) -> int:
        home, members = self._homes.get(affinity, (self._open.index(min(self._open)), 0))
        if affinity:
            self._homes[affinity] = (home, members + 1)
        self._open[home] += 1
        return home

    def _leave(self, affinity: str, home: int) -> None:
        """A group without open requests is forgotten: its next request may go anywhere."""
        self._open[home] -= 1
        if affinity:
            members = self._homes[affinity][1] - 1
            self._homes[affinity] = (home, members)
            if not members:
                del self._homes[affinity]

    async def pause(self) -> None:
        """See Engine.pause."""
        await _together([replica.pause() for replica in self._replicas])

    async def resume(self) -> None:
        """See Engine.resume."""
        await _together([replica.resume() for replica in self._replicas])

    async def update_weights(self, update: WeightUpdate) -> SwapReport:
        """See Engine.update_weights; the pause reported is the longest."""
        start = now()
        reports = await _together([replica.update_weights(update) for replica in self._replicas])
        return SwapReport(update.version, max(r.pause_seconds for r in reports), now() - start)


async def _together(calls: list[Coroutine[Any, Any, Any]]) -> list[Any]:
    """All results; the first failure cancels the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
