"""Open the two sides of a trial, each with a launcher of its own: engine servers behind a router, and trainer ranks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from arl.clock import now
from arl.engine.router import Router
from arl.launch.base import Node, Resources
from arl.launch.launchers import make_launcher
from arl.launch.placement import place
from arl.launch.trust import RunTrust
from arl.run.engine_pool import connect_engines
from arl.run.engines import EngineServers
from arl.run.failures import explain_deaths
from arl.run.ranks import open_trainer
from arl.run.smoke.busy_engines import Demand
from arl.run.smoke.smoke_trials import Trial
from arl.sync.publication_directory import publication_directory
from arl.sync.weight_sender import WeightSender
from arl.train.trainer_client import TrainerClient
from arl.types import StartingVersions, Transport

MEMORY_SHARE = 0.3  # of a GPU, which engines of all backends and trainer ranks of all transports share


@dataclass
class EngineSide:
    """Hold the engines of one trial while they run."""

    trial: Trial
    router: Router
    start_seconds: float  # until all of them were ready

    def demand(self, name: str, vocab_size: int) -> Demand:
        """Return requests that fill every slot, at the recipe's temperature.

        Args:
            name: begins their ids, which must not repeat.
            vocab_size: of the small model.
        """
        recipe = self.trial.recipe
        return Demand(
            name=name,
            slots=recipe.engine.slots * recipe.engine.replicas,
            vocab_size=vocab_size,
            temperature=recipe.rollout.temperature,
        )


@dataclass
class TrainerSide:
    """Hold the ranks of one transport while they run."""

    trainer: TrainerClient
    starting: asyncio.Task[float]  # returns the seconds until every rank had loaded the model
    version: int = 0  # of finished steps

    async def ready(self) -> float:
        """Wait until every rank has loaded the model, and return how many seconds that took."""
        return await asyncio.shield(self.starting)


@dataclass(frozen=True)
class Place:
    """Say where the processes of a smoke test find and leave things.

    Args:
        model: directory of the small model.
        directory: for logs.
        trust: secrets of their requests.
        note: is called with a line about a server that is restarted.
    """

    model: Path
    directory: Path
    trust: RunTrust
    note: Callable[[str], None]

    @property
    def versions(self) -> StartingVersions:
        """Return the small model as version 0."""
        return StartingVersions(str(self.model))


def engine_resources(trial: Trial, node: Node) -> list[Resources]:
    """Return what each engine server of the trial gets of `node`."""
    return place(trial.recipe, [node]).with_memory_share(MEMORY_SHARE).engines


@contextlib.asynccontextmanager
async def open_engines(where: Place, trial: Trial, logs: str, sender: WeightSender | None) -> AsyncIterator[EngineSide]:
    """Start the trial's engine servers, and yield a router over them once all are ready.

    Args:
        logs: name of the directory of their logs.
        sender: ranks that broadcast weights; None: there are none.
    """
    start = now()
    async with make_launcher(trial.recipe, where.directory / logs) as launcher, explain_deaths(launcher):
        resources = engine_resources(trial, launcher.nodes[0])
        servers = EngineServers(trial.recipe, where.versions, resources, launcher, where.trust)
        started = await servers.start_all()
        async with connect_engines(servers, started, where.note, sender) as router:
            yield EngineSide(trial, router, now() - start)


@contextlib.asynccontextmanager
async def open_ranks(where: Place, trial: Trial, logs: str, transport: Transport) -> AsyncIterator[TrainerSide]:
    """Start the trial's ranks, which publish by `transport`, and yield their client before they are ready."""
    begun = now()
    run_directory = where.directory / logs
    run_directory.mkdir(parents=True, exist_ok=True)

    async def start(trainer: TrainerClient) -> float:
        await trainer.ready()
        return now() - begun

    async with make_launcher(trial.recipe, run_directory) as launcher, explain_deaths(launcher):
        placement = place(trial.recipe, launcher.nodes)
        on_gpus = placement.on_gpus
        with publication_directory(trial.recipe, where.model, run_directory, None, transport, on_gpus) as weights:
            opening = open_trainer(
                trial.recipe, where.versions, weights, placement.ranks, launcher, where.trust, None, transport=transport
            )
            async with opening as trainer, asyncio.TaskGroup() as tasks:
                starting = tasks.create_task(start(trainer), name=f"start of the trainer by {transport}")
                yield TrainerSide(trainer, starting)
                starting.cancel()
