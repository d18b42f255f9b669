"""Open the world of processes on the wall clock.

    engine servers  ∥  trainer ranks  ∥  reward workers        started together, each with its share of the devices
          │                  │                  │
       Router          TrainerClient        RewardPool         what the controller talks to
          └──── weights: a directory, a broadcast or handles ──── rank 0

A server that dies is replaced (arl.engine.supervisor). Engines come and go (arl.run.engine_pool), as commands ask that
see the run's directory (arl.run.control). A rank that dies ends the run (arl.train.rank_watch).
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from pathlib import Path

import arl
from arl.clock import in_thread
from arl.config.worlds import WALL
from arl.data.prompt_format import recipe_format
from arl.data.tokenizer import load_codec
from arl.launch.base import Command, Launcher, Process, Resources, make_launcher
from arl.launch.network import host_identity, is_loopback
from arl.launch.run_secrets import RunSecrets, run_secrets
from arl.metrics.run_files import LOGS
from arl.run.control.control_messages import LiveRun
from arl.run.control.run_control import serve_control
from arl.run.engine_pool import EnginePool, open_engine_pool
from arl.run.engines import EngineServers
from arl.run.evaluation.during import MODULE, BackgroundEvaluations
from arl.run.evaluation.results import model_sha256
from arl.run.evaluation.scoreboard import Scoreboard
from arl.run.failures import explain_deaths
from arl.run.gc_pacing import rare_collections
from arl.run.preflight import Plan
from arl.run.ranks import open_trainer
from arl.run.rewards import evaluation_scorer, open_rewards, training_scorer
from arl.run.status_writer import ProcessStates
from arl.run.world import Parts, Start, recipe_parts
from arl.sync.choose import uses_files
from arl.sync.publication_directory import SHARED_MEMORY, publication_directory
from arl.types import Accuracy, StartingVersions


class WallWorld:
    """Implement World: engines, trainer ranks and rewards are processes, and time is measured."""

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
        spans_nodes = plan.placement.spans_nodes
        with publication_directory(
            recipe, start.model, directory, plan.lags, plan.transport, on_gpus, spans_nodes
        ) as weights:
            if weights.parent != SHARED_MEMORY and not spans_nodes:
                start.display.note(f"{SHARED_MEMORY} has no room: weights travel through {weights}, which is slower")
            async with make_launcher(recipe, directory / LOGS) as launcher, explain_deaths(launcher):
                addresses = [node.address for node in launcher.nodes]
                with run_secrets(directory, addresses) as trust:
                    async with _start_processes(start, weights, launcher, trust) as parts:
                        yield parts


@contextlib.asynccontextmanager
async def _start_processes(start: Start, weights: Path, launcher: Launcher, trust: RunSecrets) -> AsyncIterator[Parts]:
    """Start both sides at once. The world is open when engines answer, since the evaluation needs no trainer."""
    recipe = start.recipe
    plan = start.origin.plan
    versions = start.versions
    servers = EngineServers(
        recipe,
        versions,
        plan.placement.engines,
        launcher,
        trust,
    )
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

            async with (
                open_rewards(recipe, launcher.logs, start.display.note) as rewards,
                open_engine_pool(servers, started, start.display.note, trainer, _other_resources(plan)) as pool,
                _changeable(start, weights, servers, pool),
            ):
                yield recipe_parts(
                    start,
                    engine=pool.router,
                    trainer=trainer,
                    codec=codec,
                    rewards=training_scorer(recipe, rewards),
                    held_out_rewards=evaluation_scorer(recipe, rewards),
                    ready=ready,
                    make_evaluations=_evaluations(start, launcher),
                    num_restarts=lambda: pool.router.restarts,
                    processes=ProcessStates(launcher, pool, rewards).now,
                )
        await trainer.stop()


def _other_resources(plan: Plan) -> list[Resources]:
    """Return the resources of every process of the run that is no engine of the router."""
    evaluation = plan.placement.evaluation
    return [*plan.placement.ranks, *([] if evaluation is None else [evaluation])]


def _absolute(versions: StartingVersions) -> StartingVersions:
    """Return the same versions with paths that another process finds, wherever it was started."""
    older = {version: str(Path(path).absolute()) for version, path in versions.older.items()}
    return StartingVersions(str(Path(versions.model).absolute()), versions.version, older)


@contextlib.asynccontextmanager
async def _changeable(start: Start, weights: Path, servers: EngineServers, pool: EnginePool) -> AsyncIterator[None]:
    """Let commands join and remove engines while the context lasts; see docs/elastic.md."""
    directory = start.origin.directory
    served = start.versions.served
    model = await in_thread(model_sha256, Path(served))
    state = _first_state(start, weights, servers, model)
    async with serve_control(directory, pool, state, start.display.note):
        yield


def _first_state(start: Start, weights: Path, servers: EngineServers, model: str) -> LiveRun:
    """Describe the run to those who want to join it."""
    travels_by_file = uses_files(start.origin.plan.transport)
    return LiveRun(
        arl=arl.__version__,
        host=host_identity(),
        is_local=all(is_loopback(node.address) for node in servers.launcher.nodes),
        weights=str(weights.absolute()) if travels_by_file else None,
        versions=_absolute(start.versions),
        model=model,
        like=servers.resources[0],
        engines=[],
    )


def _evaluations(start: Start, launcher: Launcher) -> Callable[[Scoreboard], BackgroundEvaluations]:
    """Return what makes the evaluations of a run: each checkpoint is measured by one more process of its launcher."""
    recipe = start.recipe
    directory = start.origin.directory
    resources = start.origin.plan.placement.evaluation

    async def process(version: int) -> Process:
        assert resources is not None, "placed with eval.every"
        argv = (sys.executable, "-m", MODULE, str(directory.absolute()), str(version), str(resources.threads))
        return await launcher.start("evaluation", Command(argv), resources)

    def make(board: Scoreboard) -> BackgroundEvaluations:
        is_done = start.origin.is_done(recipe.train)
        return BackgroundEvaluations(
            directory, recipe, start.origin.version, is_done, process, board, start.display.note
        )

    return make
