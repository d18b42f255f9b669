"""Open the world of processes on the wall clock.

    engine servers  ∥  trainer ranks  ∥  reward workers        started together, each with its share of the devices
          │                  │                  │
       Router          TrainerClient        RewardPool         what the controller talks to
          └──── weights: a directory, a broadcast or handles ──── rank 0

A server that dies is replaced (arl.engine.supervisor). Engines come and go (arl.run.engine_pool), as commands ask that
see the run's directory (arl.run.control). A rank that dies ends the run (arl.train.trainer_client).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import arl
from arl.clock import in_thread
from arl.config.recipe import WALL
from arl.data.tokenizer import load_codec, recipe_format
from arl.launch.base import Launcher, Process, make_launcher
from arl.launch.network import host_identity, is_loopback
from arl.launch.run_secrets import RunSecrets, run_secrets
from arl.metrics.run_files import LOGS
from arl.run.control import ControlAnswer, LiveRun, Request, serve_control
from arl.run.engine_pool import open_engine_pool
from arl.run.evaluation.during import BackgroundEvaluations, evaluation_command
from arl.run.evaluation.results import model_sha256
from arl.run.evaluation.scoreboard import Scoreboard
from arl.run.failures import explain_deaths
from arl.run.processes import EngineServers, open_trainer, rare_collections
from arl.run.rewards import evaluation_scorer, open_rewards, training_scorer
from arl.run.status_writer import process_states
from arl.run.world import Parts, RunContext, World, recipe_parts
from arl.sync.publication_directory import SHARED_MEMORY, publication_directory
from arl.types import StartingVersions


class WallWorld(World):
    """Implement World: engines, trainer ranks and rewards are processes, and time is measured."""

    traits = WALL

    def process_settings(self) -> AbstractContextManager[None]:
        """See World. Collects garbage rarely, because this process holds thousands of open episodes."""
        return rare_collections()

    @contextlib.asynccontextmanager
    async def open(self, context: RunContext) -> AsyncIterator[Parts]:
        """See World.

        Raises:
            ProcessDied: one of the processes has ended.
            DeadlineError: one of them did not become ready, or did not answer.
        """
        recipe = context.recipe
        plan = context.plan
        on_gpus = plan.placement.on_gpus
        spans_nodes = plan.placement.spans_nodes
        with publication_directory(
            recipe, context.model, context.directory, plan.lags, plan.transport, on_gpus, spans_nodes
        ) as weights:
            if weights.parent != SHARED_MEMORY and not spans_nodes:
                context.display.note(f"{SHARED_MEMORY} has no room: weights travel through {weights}, which is slower")
            async with make_launcher(recipe, context.directory / LOGS) as launcher, explain_deaths(launcher):
                with run_secrets(context.directory, [node.address for node in launcher.nodes]) as trust:
                    async with _start_processes(context, weights, launcher, trust) as parts:
                        yield parts


@contextlib.asynccontextmanager
async def _start_processes(
    context: RunContext, weights: Path, launcher: Launcher, trust: RunSecrets
) -> AsyncIterator[Parts]:
    """Start both sides at once. The world is open when engines answer, since the evaluation needs no trainer."""
    recipe = context.recipe
    plan = context.plan
    note = context.display.note
    placement = plan.placement
    versions = context.versions
    servers = EngineServers(recipe, versions, dict(enumerate(placement.engines)), launcher, trust)
    started = await servers.start_all()
    async with open_trainer(
        recipe, versions, weights, placement.ranks, launcher, trust, plan.lags, plan.transport
    ) as trainer:
        nodes = [node.name for node in launcher.nodes]
        codec = load_codec(versions.model, recipe_format(recipe.data))  # takes a second, while the processes start
        others = [*placement.ranks, *([] if placement.evaluation is None else [placement.evaluation])]
        async with asyncio.TaskGroup() as tasks:
            trainer_start = tasks.create_task(trainer.ready(), name="trainer start")
            hashing = tasks.create_task(in_thread(model_sha256, Path(versions.served)), name="hash of the model")

            async def answer(request: Request) -> ControlAnswer:
                return await pool.answer(request, _describe(context, weights, servers, await hashing))

            async with (
                open_rewards(recipe, launcher.logs, note) as rewards,
                open_engine_pool(servers, started, note, trainer, others) as pool,
                serve_control(context.directory, answer),
            ):
                parts = recipe_parts(
                    context,
                    engine=pool.router,
                    trainer=trainer,
                    codec=codec,
                    rewards=training_scorer(recipe, rewards),
                    held_out_rewards=evaluation_scorer(recipe, rewards),
                )
                yield replace(
                    parts,
                    ready=lambda: trainer_start,
                    make_evaluations=lambda board: _evaluations(context, launcher, board),
                    num_restarts=lambda: pool.router.restarts,
                    processes=lambda: process_states(launcher, nodes, pool, rewards),
                )
        await trainer.stop()


def _describe(context: RunContext, weights: Path, servers: EngineServers, model: str) -> LiveRun:
    """Describe the run to those who want to join it, with paths that another process finds, wherever it was started."""
    versions = context.versions
    older = {version: str(Path(path).absolute()) for version, path in versions.older.items()}
    travels_by_file = context.plan.transport in ("file", "ipc")
    return LiveRun(
        arl=arl.__version__,
        host=host_identity(),
        is_local=all(is_loopback(node.address) for node in servers.launcher.nodes),
        weights=str(weights.absolute()) if travels_by_file else None,
        versions=StartingVersions(str(Path(versions.model).absolute()), versions.version, older),
        model=model,
        like=servers.resources[0],
        engines=[],
    )


def _evaluations(context: RunContext, launcher: Launcher, board: Scoreboard) -> BackgroundEvaluations:
    """Make the evaluations of a run: checkpoints are measured by one more process of its launcher."""
    directory = context.directory.absolute()
    resources = context.plan.placement.evaluation
    assert resources is not None, "placed with eval.every"

    async def process(version: int) -> Process:
        command = evaluation_command(context.recipe, directory, version, resources)
        return await launcher.start("evaluation", command, resources)

    return BackgroundEvaluations(board, context.version, context.is_done, process)
