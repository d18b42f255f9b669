"""Start the engine servers of a run and connect a router to them; a server that dies is replaced."""

import asyncio
import contextlib
import functools
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from arl.config.recipe import Recipe
from arl.data.model_limits import model_limits
from arl.engine.http.engine_client import SGLangEngine
from arl.engine.router import Router
from arl.engine.sglang import server_command
from arl.engine.supervisor import EngineKeeper
from arl.launch.child import RUN_KEY
from arl.launch.local import LocalProcess, LocalProcesses
from arl.launch.loopback import LOOPBACK
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
        argv, env = _engine_command(self.recipe, self.versions, self.shares[i], self.recipe.seed + i)
        env |= LOOPBACK | {RUN_KEY: self.key}
        return await self.processes.start(f"engine-{i}", argv, env, is_kept=True)

    async def start_all(self) -> list[LocalProcess]:
        return [await self.start(i) for i in range(len(self.shares))]

    def connect(self, url: str, sender: WeightSender | None = None) -> SGLangEngine:
        limits, (vocab_size, context) = self.recipe.deadlines, model_limits(self.versions.served)
        return SGLangEngine(
            url,
            generate_seconds=limits.generate,
            swap_seconds=limits.swap,
            kv_policy=self.recipe.engine.kv_policy,
            gives_up_memory=self.shares[0].in_turns,
            key=self.key,
            vocab_size=vocab_size,
            context=context,
            sender=sender,
            workers=self.recipe.engine.tensor_parallel,
        )


def _engine_command(
    recipe: Recipe, versions: StartingVersions, share: Share, seed: int
) -> tuple[list[str], dict[str, str]]:
    """argv and environment of one server."""
    config = recipe.engine
    if config.kind == "sglang":
        python, limits = server_command.interpreter(config.python), model_limits(versions.served)
        argv = server_command.command(config, python, versions.served, versions.oldest, share, limits, seed)
        return argv, server_command.environment(python, share)
    argv = [
        *(sys.executable, "-m", "arl.engine.embedded.server", "--model", versions.served, "--port", "0"),
        *("--slots", str(config.slots), "--dtype", config.dtype, "--threads", str(share.threads)),
        *("--stream-interval", str(config.stream_interval), "--version", str(versions.oldest)),
    ]
    return argv, share.env


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
