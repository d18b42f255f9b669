"""Open the world of processes on the wall clock.

    engine servers  ∥  trainer ranks  ∥  reward workers        started together, each with its share of the devices
          │                  │                  │
       Router          TrainerClient        RewardPool         what the controller talks to
          └──── weights: a directory, a broadcast or handles ──── rank 0

A server that dies is replaced (arl.engine.supervisor). A rank that dies ends the run (arl.train.rank_watch).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from pathlib import Path

from arl.config.worlds import WALL
from arl.data.prompt_format import recipe_format
from arl.data.tokenizer import load_codec
from arl.launch.base import Launcher
from arl.launch.launchers import make_launcher
from arl.launch.trust import RunTrust, run_trust
from arl.run.engines import EngineServers, connect_engines
from arl.run.evaluation.during import BackgroundEvaluations
from arl.run.evaluation.replica import open_replica
from arl.run.evaluation.scoreboard import Scoreboard
from arl.run.failures import explain_deaths
from arl.run.gc_pacing import rare_collections
from arl.run.ranks import open_trainer
from arl.run.rewards import evaluation_scorer, open_rewards, training_scorer
from arl.run.world import Parts, Start, recipe_parts
from arl.sync.publication_directory import SHARED_MEMORY, publication_directory
from arl.sync.verify import refuse_other_tensors
from arl.types import Accuracy


class WallWorld:
    """Implements World: engines, trainer ranks and rewards are processes, and time is measured."""

    traits = WALL

    def process_settings(self) -> AbstractContextManager[None]:
        """See World. Collects garbage rarely, because this process holds thousands of open episodes."""
        return rare_collections()

    def known_accuracy(self, start: Start) -> Accuracy | None:
        """See World."""
        return None

    @contextlib.asynccontextmanager
    async def open(self, start: Start) -> AsyncIterator[Parts]:
        """See World.

        Raises:
            ProcessDied: one of the processes has ended.
            DeadlineError: one of them did not become ready, or did not answer.
        """
        recipe = start.recipe
        directory = start.origin.directory
        plan = start.origin.plan
        on_gpus = plan.placement.on_gpus
        with publication_directory(recipe, start.model, directory, plan.lags, plan.transport, on_gpus) as weights:
            if weights.parent != SHARED_MEMORY:
                start.display.note(f"{SHARED_MEMORY} has no room: weights travel through {weights}, which is slower")
            async with make_launcher(recipe, directory / "logs") as launcher, explain_deaths(launcher):
                addresses = [node.address for node in launcher.nodes]
                with run_trust(directory, addresses) as trust:
                    async with _start_processes(start, weights, launcher, trust) as parts:
                        yield parts


@contextlib.asynccontextmanager
async def _start_processes(start: Start, weights: Path, launcher: Launcher, trust: RunTrust) -> AsyncIterator[Parts]:
    """Start both sides at once. The world is open when engines answer, since the evaluation needs no trainer."""
    recipe = start.recipe
    plan = start.origin.plan
    versions = start.versions
    servers = EngineServers(recipe, versions, plan.placement.engines, launcher, trust)
    started = await servers.start_all()
    async with open_trainer(
        recipe, versions, weights, plan.placement.ranks, launcher, trust, plan.lags, plan.transport
    ) as trainer:
        prompts = recipe_format(recipe.data)
        codec = load_codec(versions.model, prompts)  # takes a second, while the processes start
        async with asyncio.TaskGroup() as tasks:
            trainer_start = tasks.create_task(trainer.ready(), name="trainer start")

            async def ready() -> None:
                await trainer_start
                refuse_other_tensors(trainer.tensors, Path(versions.served))

            async with (
                open_rewards(recipe, launcher.logs, start.display.note) as rewards,
                connect_engines(servers, started, start.display.note, trainer) as engine,
            ):
                yield recipe_parts(
                    start,
                    engine=engine,
                    trainer=trainer,
                    codec=codec,
                    rewards=training_scorer(recipe, rewards),
                    held_out_rewards=evaluation_scorer(recipe, rewards),
                    ready=ready,
                    make_evaluations=_evaluations(start, servers),
                    num_restarts=lambda: engine.restarts,
                )
        await trainer.stop()


def _evaluations(start: Start, servers: EngineServers) -> Callable[[Scoreboard], BackgroundEvaluations]:
    """Return what makes the evaluations of a run: checkpoints are measured on one more server like the run's."""
    recipe = start.recipe
    plan = start.origin.plan

    def make(board: Scoreboard) -> BackgroundEvaluations:
        return BackgroundEvaluations(
            start.origin.directory,
            recipe,
            start.origin.version,
            start.origin.is_done(recipe.train),
            lambda: open_replica(recipe, plan, servers, start.display.note),
            board,
            start.display.note,
        )

    return make
