"""Start the processes of both sides of a run, and connect to them.

engines   start_all ─► servers load their weights ─► connect: a client each ─► arl.run.engine_pool
                                                        ▲  a server dies ─► start(i)
trainer   recipe ─► Init ─► TrainerClient listens ─► launcher starts the ranks ─► each says Hello and gets Init
"""

import asyncio
import contextlib
import gc
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from arl.config.recipe import Recipe
from arl.engine.backend import ServerSpec, find_backend
from arl.engine.base import ReplicaEngine
from arl.launch.base import Command, Launcher, Process, Resources
from arl.launch.run_secrets import RunSecrets
from arl.launch.torch_build import nccl_settings
from arl.sync.buckets import BUCKET_BYTES
from arl.sync.choose import kept_versions, oldest_age
from arl.sync.group_sender import GroupSender
from arl.train.channel import Init
from arl.train.trainer_client import TrainerClient
from arl.types import StartingVersions, Transport

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # torch reads the old name and the new one
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
CONTAINERS = 100_000  # of a few hundred bytes: garbage in cycles holds some 20 MB at most before it is collected


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
    resources: dict[int, Resources]
    launcher: Launcher
    trust: RunSecrets
    side: str = "engine"

    async def start(self, i: int) -> Process:
        """Start server `i`, for the first time or again, without waiting until it is ready."""
        command = find_backend(self.recipe.engine.kind).command(self._spec(i))
        environment = {
            **self.recipe.engine.environment,
            **nccl_settings(self.recipe),
            **command.environment,
            **self.trust.environment,
        }
        complete = Command(command.argv, environment, {**command.secrets, **self.trust.secrets})
        return await self.launcher.start(f"{self.side}-{i}", complete, self.resources[i])

    async def start_all(self, ranks: Awaitable[None] | None = None) -> list[Process]:
        """Start every server, but on GPUs of ranks when these are ready: SGLang sizes its cache by what is free."""
        if ranks is not None and any(one.devices and one.takes_turns for one in self.resources.values()):
            await ranks
        return [await self.start(i) for i in self.resources]

    def connect(
        self, url: str, sender: GroupSender | None = None, replica: int = 0
    ) -> AbstractAsyncContextManager[ReplicaEngine]:
        """Connect to server number `replica`, which is ready at `url`."""
        backend = find_backend(self.recipe.engine.kind)
        return backend.connect(url, self._spec(replica), self.trust.key, sender)

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


@contextlib.asynccontextmanager
async def open_trainer(
    recipe: Recipe,
    versions: StartingVersions,
    weights: Path,
    ranks: list[Resources],
    launcher: Launcher,
    trust: RunSecrets,
    lags: np.ndarray | None,
    transport: Transport = "file",
    bucket_bytes: int = BUCKET_BYTES,
) -> AsyncIterator[TrainerClient]:
    """Start the trainer ranks, and yield their client before they are ready.

    A rank that dies or raises meanwhile ends the block.

    Args:
        weights: directory for what is published as a file.
        ranks: resources of each rank.
        trust: secrets of the run.
        lags: exact lag of each problem, if the recipe has one.
        transport: how weights are published.
        bucket_bytes: see Init.
    """
    deadlines = recipe.deadlines
    init = Init(
        model_path=versions.model,
        train=recipe.train.model_copy(update={"threads": ranks[0].threads}).model_dump(mode="json"),
        objective=recipe.objective.located(versions.base).model_dump(mode="json"),
        advantage=recipe.advantage.model_dump(mode="json") if recipe.advantage.columns else {},
        temperature=recipe.rollout.temperature,
        version=versions.version,
        resumed=versions.version > 0,
        publish_directory=str(weights),
        kept_versions=kept_versions(recipe, lags),
        collective_seconds=deadlines.collective,
        shutdown_seconds=deadlines.shutdown,
        oldest_age=oldest_age(recipe, lags),
        every_version=lags is not None,
        transport=transport,
        for_nodes=len(launcher.nodes) > 1,
        bucket_bytes=bucket_bytes,
        sharing_ranks=min(recipe.engine.replicas * recipe.engine.tensor_parallel, recipe.train.ranks),
        broadcast_seconds=deadlines.blocked_broadcast,
        checked_as=recipe.engine.dtype if recipe.sync.check else None,
        takes_turns=ranks[0].takes_turns,
        seed=recipe.seed,
        publishes_adapters=recipe.publishes_adapters,
    )
    host = launcher.nodes[0].address
    records = recipe.output.trajectories
    client = TrainerClient(
        init, recipe.advantage, len(ranks), trust, deadlines, host=host, published=versions.older, records=records
    )
    async with client as trainer, asyncio.TaskGroup() as tasks:
        await start_ranks(trainer, ranks, launcher, rank_environment(recipe, transport))
        failure = tasks.create_task(trainer.failure(), name="trainer watcher")
        yield trainer
        failure.cancel()


async def start_ranks(
    trainer: TrainerClient, ranks: Sequence[Resources], launcher: Launcher, environment: Mapping[str, str]
) -> list[Process]:
    """Start a process for each rank, and have `trainer` watch it.

    Args:
        trainer: the client, which listens already.
        ranks: resources of each rank.
        launcher: starts the processes, and ends them when its own context ends.
        environment: variables of these processes, see `rank_environment`.
    """
    processes = []
    for rank, resources in enumerate(ranks):
        # Each rank sees only its own device, so that is the first.
        numbers = {"RANK": str(rank), "WORLD_SIZE": str(len(ranks)), "LOCAL_RANK": "0"}
        complete = {**environment, **trainer.environment, **numbers}
        command = Command((sys.executable, "-m", "arl.train.rank"), complete, trainer.secrets)
        process = await launcher.start(f"trainer-{rank}", command, resources)
        trainer.watch(rank, process)
        processes.append(process)
    return processes


def rank_environment(recipe: Recipe, transport: Transport) -> dict[str, str]:
    """Return the variables of trainer ranks that come from the recipe, or are chosen for both sides.

    Packs differ in length from step to step, which fragments torch's memory of fixed segments; expandable segments
    avoid that. They are for ranks alone, because SGLang's memory saver refuses them, and not for transport ipc, because
    their handles are file descriptors, which an engine that is not a child of the rank may not be allowed to take.

    Raises:
        RecipeError: the two sides give different values to a setting that they must share.
    """
    environment = {**recipe.train.environment, **nccl_settings(recipe)}
    is_given = any(name in environment or name in os.environ for name in ALLOCATOR_VARIABLES)
    if transport == "ipc" or is_given:
        return environment
    return environment | EXPANDABLE


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Collect after CONTAINERS new containers instead of Python's 700.

    An open episode is some thirty containers (task, coroutines, iterators). They live as long as its answer takes, and
    none is in a cycle. At Python's pace the collector visits all of them again and again. With thousands of open
    episodes that takes almost as much time as the rest of the controller (docs/benchmarks/controller.json).
    """
    before = gc.get_threshold()
    gc.set_threshold(CONTAINERS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
