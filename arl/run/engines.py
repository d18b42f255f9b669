"""Start the engine servers of a run, and connect to them.

start_all ─► servers load their weights ─► connect: a client each ─► arl.run.engine_pool
                                              ▲  a server dies ─► start(i)
"""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from arl.config.recipe import Recipe
from arl.engine.backend import Backend, ServerSpec, find_backend
from arl.engine.base import ReplicaEngine
from arl.launch.base import Command, Launcher, Process, Resources
from arl.launch.run_secrets import RunSecrets
from arl.launch.torch_build import nccl_settings
from arl.sync.group_sender import GroupSender
from arl.types import StartingVersions


@dataclass(frozen=True)
class EngineServers:
    """Start the engine servers of a run, each on a free port of its node's address.

    Args:
        recipe: of the run.
        versions: a server begins with the oldest of them, which nobody deletes.
        resources: of each server, by number; those of servers that are added later are added here.
        launcher: starts the processes.
        trust: secrets of the run; every request must carry its key.
        side: begins the role of each server, as messages and logs name it.
    """

    recipe: Recipe
    versions: StartingVersions
    resources: list[Resources] | dict[int, Resources]
    launcher: Launcher
    trust: RunSecrets
    side: str = "engine"

    async def start(self, i: int) -> Process:
        """Start server `i`, for the first time or again, without waiting until it is ready."""
        command = self._backend.command(self._spec(i))
        environment = {
            **self.recipe.engine.environment,
            **nccl_settings(self.recipe),
            **command.environment,
            **self.trust.environment,
        }
        secrets = {**command.secrets, **self.trust.secrets}
        complete = Command(command.argv, environment, secrets)
        return await self.launcher.start(f"{self.side}-{i}", complete, self.resources[i])

    async def start_all(self) -> list[Process]:
        """Start every server."""
        return [await self.start(i) for i in range(len(self.resources))]

    def connect(
        self, url: str, sender: GroupSender | None = None, replica: int = 0
    ) -> AbstractAsyncContextManager[ReplicaEngine]:
        """Connect to server number `replica`, which is ready at `url`."""
        return self._backend.connect(url, self._spec(replica), self.trust.key, sender)

    @property
    def _backend(self) -> Backend:
        return find_backend(self.recipe.engine.kind)

    def _spec(self, i: int) -> ServerSpec:
        return ServerSpec(
            recipe=self.recipe,
            versions=self.versions,
            resources=self.resources[i],
            seed=self.recipe.seed + i,
            host=self.launcher.nodes[self.resources[i].node].address,
            replica=i,
            certificate=self.trust.certificate,
        )
