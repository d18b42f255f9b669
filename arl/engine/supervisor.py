"""Keep one slot of the router filled: an engine server that dies or falls silent is replaced by a new one. Torch-free.

start ─► ready ─► connect ─► Router.fill ─► it serves ─► it dies, or the router has lost it ─► nothing is left of it
  ▲                                                                                                    │
  └─────────────────────────────── max_restarts times in an hour ──────────────────────────────────────┘
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import NoReturn

from arl.clock import now
from arl.engine.base import ReplicaEngine
from arl.engine.router import DEATH_SECONDS, Replica, Router
from arl.errors import DeadlineError, EngineLost, ProcessDied, RunError
from arl.launch.base import Process
from arl.launch.spawn import RUNS

RESTART_WINDOW = 3600.0  # seconds


@dataclass
class _End:
    """Describe how one server ended. Nothing of it is left."""

    how: str  # engine-0 (pid 17) was killed by SIGKILL
    why: RunError  # its death, or the failure for which it was killed
    time: float
    by_itself: bool  # it was not killed by its supervisor
    replica: Replica | None  # None: it had not served


@dataclass
class EngineSupervisor:
    """Watch over one engine server, and start those that replace it.

    Args:
        router, slot: where it serves.
        start: starts a new server, with weights that nobody deletes.
        connect: connects to the server that is ready at this URL.
        startup_seconds: from a start until the server is ready.
        max_restarts: restarts that are allowed within RESTART_WINDOW; the next end of a server is final.
        note: is given one line for each recovery.
        has_served: is set when a server first serves.
    """

    router: Router
    slot: int
    start: Callable[[], Awaitable[Process]]
    connect: Callable[[str], AbstractAsyncContextManager[ReplicaEngine]]
    startup_seconds: float
    max_restarts: int
    note: Callable[[str], None]
    has_served: asyncio.Event = field(default_factory=asyncio.Event)
    _losses: list[float] = field(default_factory=list)  # clock seconds, within RESTART_WINDOW
    _last: _End | None = None  # of a server that had served

    async def supervise(self, server: Process) -> NoReturn:
        """Replace `server`, and each that follows it, when it ends.

        Consumes the ends of its servers; waits for the next; unblocked by a death, or by a loss that the router saw.

        Raises:
            ProcessDied: one end too many, or the very first server could not start; with the end of its log.
        """
        while True:
            end = await self._run_to_end(server)
            # Servers that were lost before they served belong to the loss before them, however long their starts took:
            # a server that can never be started again must come to an end.
            if end.replica is not None:
                self._last = end
                self._losses = [loss for loss in self._losses if loss > end.time - RESTART_WINDOW]
            self._losses.append(end.time)
            was_killed = end.by_itself and (server.exit_code or 0) < 0
            gave_up = not (self.has_served.is_set() or was_killed)  # a new one would give up its start as well
            if gave_up or len(self._losses) > self.max_restarts:
                limit = f"; engine.max_restarts {self.max_restarts} allows no more in {RESTART_WINDOW:g} s"
                reason = "" if end.by_itself else f" {end.why}."
                raise ProcessDied(f"{end.how}{'' if gave_up else limit}.{reason}\n{server.log_tail()}") from end.why
            if end.replica is None:
                self.note(f"{end.how} before it served")
            await self.router.may_start(self.slot)
            server = await self.start()

    async def _run_to_end(self, server: Process) -> _End:
        """Put in a server that was started, wait until it is lost, and kill what is left of it.

        Raises:
            RunError: the server answered with an error and lives on: it refused what it was asked.
        """
        replica = None
        try:
            url = await server.ready(self.startup_seconds)
            async with self.connect(url) as engine:
                replica = await self.router.fill(self.slot, engine)
                self.has_served.set()
                if self._last is not None:
                    assert self._last.replica is not None
                    took = f"restarted in {now() - self._last.time:.1f} s at version {engine.loaded_version}"
                    self.note(f"{self._last.how}; {took}; {self._last.replica.cut_short} requests resumed")
                await self._raise_loss(server, replica)
        except RunError as error:  # the client has ended what was open by now
            why = error
            time = now()
        missed = await _describe_silence(server, why)
        patience = 0.0 if isinstance(why, DeadlineError) else DEATH_SECONDS
        died = await server.wait_then_kill_group(patience)
        is_lost = isinstance(why, EngineLost | DeadlineError) or (replica is not None and replica.lost.is_set())
        if not died and not is_lost:
            raise why
        how = await server.ended()
        if not died:
            how = f"{server} {missed} and was killed"
        return _End(how, why, time, died, replica)

    async def _raise_loss(self, server: Process, replica: Replica) -> NoReturn:
        """Wait until the server has died or the router has lost it, and raise why."""
        died = asyncio.create_task(server.died())
        lost = asyncio.create_task(replica.lost.wait())
        try:
            await asyncio.wait({died, lost}, return_when=asyncio.FIRST_COMPLETED)
            if died.done():
                self.router.lose(replica, died.result())
        finally:
            died.cancel()
            lost.cancel()
        assert replica.loss is not None
        raise replica.loss


async def _describe_silence(server: Process, why: RunError) -> str:
    """Say why a server is lost that may live on, and what keeps it from running."""
    if not isinstance(why, DeadlineError):
        return "broke its connection"
    state = await server.state()
    waited = str(why).partition(". Waiting: ")[0]
    stopped = "" if state == RUNS else f"{state}, "
    return f"{stopped}did not answer in time ({waited})"
