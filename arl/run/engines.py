"""Start the engine servers of a run and connect a router to them; a server that dies is replaced.

start_all ─► servers load their weights ─► connect_engines: one keeper each ─► Router
                                                             ▲  a server dies ─► start(i)
"""

import asyncio
import contextlib
import functools
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from arl.config.environment import merge_environments
from arl.config.recipe import Recipe
from arl.data.model_limits import model_limits
from arl.engine.base import WeightSender
from arl.engine.http.engine_client import SGLangEngine
from arl.engine.router import Router
from arl.engine.sglang import server_command
from arl.engine.supervisor import EngineKeeper
from arl.launch.base import Command, Launcher, Process, Resources
from arl.launch.child import RUN_KEY
from arl.types import StartingVersions


@dataclass(frozen=True)
class EngineServers:
    """Starts the engine servers of a run, each on a free port of the launcher's address.

    Args:
        recipe: of the run.
        versions: a server begins with the oldest of them, which nobody deletes.
        resources: of each server.
        launcher: starts the processes.
        key: secret of the run, which every request must carry.
    """

    recipe: Recipe
    versions: StartingVersions
    resources: list[Resources]
    launcher: Launcher
    key: str

    async def start(self, i: int) -> Process:
        """Start server `i`, for the first time or again, without waiting until it is ready."""
        resources = self.resources[i]
        argv, ours = _engine_command(self.recipe, self.versions, resources, self.recipe.seed + i)
        ours = {**ours, RUN_KEY: self.key}
        environment = merge_environments("engine.environment", self.recipe.engine.environment, ours)
        return await self.launcher.start(f"engine-{i}", Command(tuple(argv), environment), resources)

    async def start_all(self) -> list[Process]:
        """Start every server."""
        return [await self.start(i) for i in range(len(self.resources))]

    def connect(self, url: str, sender: WeightSender | None = None) -> SGLangEngine:
        limits, (vocab_size, context) = self.recipe.deadlines, model_limits(self.versions.served)
        return SGLangEngine(
            url,
            generate_seconds=limits.generate,
            swap_seconds=limits.swap,
            kv_policy=self.recipe.engine.kv_policy,
            gives_up_memory=self.resources[0].takes_turns,
            key=self.key,
            vocab_size=vocab_size,
            context=context,
            sender=sender,
            workers=self.recipe.engine.tensor_parallel,
        )


def _engine_command(
    recipe: Recipe, versions: StartingVersions, resources: Resources, seed: int
) -> tuple[list[str], dict[str, str]]:
    """argv and environment of one server."""
    config = recipe.engine
    if config.kind == "sglang":
        python, limits = server_command.interpreter(config.python), model_limits(versions.served)
        argv = server_command.command(config, python, versions.served, versions.oldest, resources, limits, seed)
        return argv, server_command.environment(python, resources)
    argv = [
        *(sys.executable, "-m", "arl.engine.embedded.server", "--model", versions.served, "--port", "0"),
        *("--slots", str(config.slots), "--dtype", config.dtype, "--threads", str(resources.threads)),
        *("--stream-interval", str(config.stream_interval), "--version", str(versions.oldest)),
    ]
    return argv, {}


@contextlib.asynccontextmanager
async def connect_engines(
    servers: EngineServers, started: list[Process], note: Callable[[str], None], sender: WeightSender | None = None
) -> AsyncIterator[Router]:
    """Yield a Router over the started servers, once all of them are ready. A server that dies is replaced.

    Args:
        servers: start a server again, and connect to it.
        started: by seat of the router.
        note: is called with one line for each replacement.
        sender: the trainer, where weights are broadcast.
    """
    router = Router([None] * len(started))
    startup = servers.recipe.deadlines.startup
    restarts = servers.recipe.engine.max_restarts
    async with asyncio.TaskGroup() as tasks:
        keepers = []
        for i, server in enumerate(started):
            start = functools.partial(servers.start, i)
            connect = functools.partial(servers.connect, sender=sender)
            keeper = EngineKeeper(router, i, start, connect, startup, restarts, note)
            keepers.append((keeper, tasks.create_task(keeper.keep(server), name=f"keeper of {server.role}")))
        for keeper, _ in keepers:
            await keeper.has_served.wait()  # or its task ends the group, within the deadlines of a start
        yield router
        for _, task in keepers:
            task.cancel()
