"""Keeps one seat of the router filled: an engine server that dies or falls silent is replaced by a new one.

start ─► ready ─► connect ─► Router.fill ─► it serves ─► it dies, or the router has lost it ─► nothing is left of it
  ▲                                                                                                    │
  └────────────────────────────────────── max_restarts times ──────────────────────────────────────────┘
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import NoReturn, Protocol

from arl.clock import now
from arl.engine.base import ReplicaEngine
from arl.engine.router import DEATH_SECONDS, Replica, Router
from arl.errors import DeadlineError, EngineLost, ProcessDied, RunError


class Server(Protocol):
    """A process that was started; see arl.launch.local.LocalProcess."""

    @property
    def exit_code(self) -> int | None: ...

    async def ready(self, seconds: float) -> str: ...

    async def ended(self) -> str: ...

    async def died(self) -> ProcessDied: ...

    async def ends_by_itself(self, seconds: float) -> bool: ...

    def last_words(self) -> str: ...


@dataclass
class _End:
    how: str  # engine-0 (pid 17) was killed by SIGKILL
    why: RunError  # its death, or what made it be killed
    time: float
    by_itself: bool  # it was not us who killed it
    replica: Replica | None  # None: it had not served


class EngineKeeper:
    """One engine, and those that replace it.

    Args:
        router, seat: where it serves.
        start: makes a new server, which begins with weights that nobody deletes.
        connect: to the server that says it is ready at this URL.
        startup_seconds: from a start until the server is ready.
        max_restarts: the end after so many ends the run.
        note: told each recovery, in one line.
    """

    def __init__(
        self,
        router: Router,
        seat: int,
        start: Callable[[], Awaitable[Server]],
        connect: Callable[[str], AbstractAsyncContextManager[ReplicaEngine]],
        startup_seconds: float,
        max_restarts: int,
        note: Callable[[str], None],
    ) -> None:
        self._router, self._seat, self._start, self._connect = router, seat, start, connect
        self._startup_seconds, self._max_restarts, self._note = startup_seconds, max_restarts, note
        self._last: _End | None = None  # of those that had served
        self.has_served = asyncio.Event()

    async def keep(self, server: Server) -> NoReturn:
        """Consumes the ends of its servers; waits for the next; unblocked by a death, or by the router.

        Raises:
            ProcessDied: one end too many, or the very first server could not begin; with the end of its log.
        """
        restarts = 0
        while True:
            end = await self._life(server)
            if end.replica is not None:
                self._last = end
            was_killed = end.by_itself and (server.exit_code or 0) < 0
            hopeless = not (self.has_served.is_set() or was_killed)  # it gave up, and so would the next
            if hopeless or restarts == self._max_restarts:
                limit = "" if hopeless else f"; engine.max_restarts {self._max_restarts} allows no more"
                reason = "" if end.by_itself else f"{end.why}. "
                raise ProcessDied(f"{end.how}{limit}. {reason}{server.last_words()}") from end.why
            if end.replica is None:
                self._note(f"{end.how} before it served")
            restarts += 1
            await self._router.may_start(self._seat)
            server = await self._start()

    async def _life(self, server: Server) -> _End:
        """From its start to its end, when nothing is left of it.

        Raises:
            RunError: what it answered, of which it did not die: a refusal.
        """
        replica = None
        try:
            url = await server.ready(self._startup_seconds)
            async with self._connect(url) as engine:
                replica = await self._router.fill(self._seat, engine)
                self._tell(replica)
                await self._end_of(server, replica)
        except RunError as error:  # the client has ended what was open by now
            why, time = error, now()
        died = await server.ends_by_itself(0.0 if isinstance(why, DeadlineError) else DEATH_SECONDS)
        if not (died or isinstance(why, EngineLost | DeadlineError) or (replica and replica.lost.is_set())):
            raise why  # it refused what it was asked, and would go on
        how = await server.ended()
        if not died:
            missed = isinstance(why, DeadlineError)
            how = f"{server} {'did not answer in time' if missed else 'broke its connection'} and was killed"
        return _End(how, why, time, died, replica)

    async def _end_of(self, server: Server, replica: Replica) -> NoReturn:
        """Waits until the server has died or the router has lost it, and raises why."""
        died, lost = asyncio.create_task(server.died()), asyncio.create_task(replica.lost.wait())
        try:
            await asyncio.wait({died, lost}, return_when=asyncio.FIRST_COMPLETED)
            if died.done():
                self._router.lose(replica, died.result())
        finally:
            died.cancel()
            lost.cancel()
        assert replica.loss is not None
        raise replica.loss

    def _tell(self, replica: Replica) -> None:
        self.has_served.set()
        if self._last is not None and self._last.replica is not None:
            self._note(
                f"{self._last.how}; restarted in {now() - self._last.time:.1f} s at version "
                f"{replica.engine.loaded_version}; {self._last.replica.cut_short} requests resumed"
            )
