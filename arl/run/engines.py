"""Start the engine servers of a run and connect a router to them; a server that dies is replaced."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from arl.config.recipe import Recipe
from arl.engine.backend import Backend, ServerSpec, find_backend
from arl.engine.base import ReplicaEngine
from arl.engine.router import Router
from arl.engine.supervisor import EngineSupervisor
from arl.launch.child import RUN_KEY
from arl.launch.local import LocalProcess, LocalProcesses
from arl.launch.loopback import HOST, LOOPBACK
from arl.launch.placement import Share
from arl.sync.weight_sender import WeightSender
from arl.types import StartingVersions


@dataclass(frozen=True)
class EngineServers:
    """One server per share, on a free loopback port, with the oldest of `versions`."""

    recipe: Recipe
    versions: StartingVersions
    shares: list[Share]
    processes: LocalProcesses
    key: str

    async def start(self, i: int) -> LocalProcess:
        """Server `i`, for the first time or again."""
        argv, environment = self._backend.command(self._spec(i))
        env = {**environment, **LOOPBACK, RUN_KEY: self.key}
        return await self.processes.start(f"engine-{i}", argv, env, is_kept=True)

    async def start_all(self) -> list[LocalProcess]:
        return [await self.start(i) for i in range(len(self.shares))]

    def connect(self, url: str, sender: WeightSender | None = None) -> AbstractAsyncContextManager[ReplicaEngine]:
        """Connect to a server that is ready at `url`; to a client all of them are alike."""
        return self._backend.connect(url, self._spec(0), self.key, sender)

    @property
    def _backend(self) -> Backend:
        return find_backend(self.recipe.engine.kind)

    def _spec(self, i: int) -> ServerSpec:
        return ServerSpec(
            recipe=self.recipe,
            versions=self.versions,
            resources=self.shares[i],
            seed=self.recipe.seed + i,
            host=HOST,
        )


@contextlib.asynccontextmanager
async def connect_engines(
    servers: EngineServers, started: list[LocalProcess], note: Callable[[str], None], sender: WeightSender | None = None
) -> AsyncIterator[Router]:
    """A Router over what was started, once all of it is ready; a server that dies is replaced, and `note` told.

    `sender` is the trainer, where weights are broadcast.
    """
    router = Router([None] * len(started))
    startup, restarts = servers.recipe.deadlines.startup, servers.recipe.engine.max_restarts
    async with asyncio.TaskGroup() as tasks:
        supervisors = []
        for i, server in enumerate(started):
            start = functools.partial(servers.start, i)
            connect = functools.partial(servers.connect, sender=sender)
            supervisor = EngineSupervisor(router, i, start, connect, startup, restarts, note)
            task = tasks.create_task(supervisor.supervise(server), name=f"supervisor of {server.role}")
            supervisors.append((supervisor, task))
        for supervisor, _ in supervisors:
            await supervisor.has_served.wait()  # or its task ends the group, within the deadlines of a start
        yield router
        for _, task in supervisors:
            task.cancel()
