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
import functools
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import arl
from arl.clock import in_thread
from arl.config.recipe import WALL
from arl.data.tokenizer import load_codec
from arl.engine.router import Router
from arl.launch.base import Launcher, Node, Process, make_launcher
from arl.launch.network import host_identity, is_loopback
from arl.launch.run_secrets import run_secrets
from arl.metrics.run_files import LOGS
from arl.metrics.run_status import ProcessStatus
from arl.run.control import LiveRun, serve_control
from arl.run.engine_pool import EnginePool, open_engine_pool
from arl.run.evaluation.during import BackgroundEvaluations, evaluation_command
from arl.run.evaluation.results import model_sha256
from arl.run.evaluation.scoreboard import Scoreboard
from arl.run.failures import explain_deaths
from arl.run.processes import EngineServers, open_trainer, rare_collections
from arl.run.rewards import evaluation_scorer, open_rewards, training_scorer
from arl.run.teachers import open_teachers
from arl.run.world import Parts, RunContext, World, recipe_parts
from arl.sandbox.current import configured
from arl.sync.publication_directory import SHARED_MEMORY, publication_directory
from arl.types import Transport


class WallWorld(World):
    """Implement World: engines, trainer ranks and rewards are processes, and time is measured."""

    traits = WALL

    def process_settings(self) -> AbstractContextManager[None]:
        """See World. Collects garbage rarely, because this process holds thousands of open episodes."""
        return rare_collections()

    @contextlib.asynccontextmanager
    async def open(self, context: RunContext) -> AsyncIterator[Parts]:
        """See World. Starts both sides at once, on shared GPUs ranks first, and is open when engines answer.

        Raises:
            ProcessDied, DeadlineError: one of the processes has ended, or did not become ready, or did not answer.
        """
        recipe = context.recipe
        plan = context.plan
        placement = plan.placement
        versions = context.versions
        note = context.display.note
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(configured(recipe.sandbox))
            where = (placement.on_gpus, placement.spans_nodes)
            weights = stack.enter_context(
                publication_directory(recipe, context.model, context.directory, plan.lags, plan.transport, *where)
            ).absolute()
            if weights.parent != SHARED_MEMORY and not placement.spans_nodes:
                note(f"{SHARED_MEMORY} has no room: weights travel through {weights}, which is slower")
            launcher = await stack.enter_async_context(make_launcher(recipe, context.directory / LOGS))
            await stack.enter_async_context(explain_deaths(launcher))
            nodes = launcher.nodes  # asking for them may ask the driver of the GPUs
            trust = stack.enter_context(run_secrets(context.directory, [node.address for node in nodes]))
            servers = EngineServers(recipe, versions, dict(enumerate(placement.engines)), launcher, trust)
            trainer = await stack.enter_async_context(
                open_trainer(recipe, versions, weights, placement.ranks, launcher, trust, plan.lags, plan.transport)
            )
            async with asyncio.TaskGroup() as tasks:
                trainer_start = tasks.create_task(trainer.ready(), name="trainer start")
                started = await servers.start_all(trainer_start)
                codec = load_codec(versions.model, recipe.data)  # takes a second, while the processes start
                hashing = tasks.create_task(in_thread(model_sha256, Path(versions.served)), name="hash of the model")
                describe = functools.partial(_describe, context, weights, servers, nodes, hashing)
                async with (
                    open_rewards(recipe, launcher.logs, note) as rewards,
                    open_teachers(recipe, placement.teachers, launcher, trust, note) as teachers,
                    open_engine_pool(servers, started, note, trainer, placement.beside_engines) as pool,
                    serve_control(context.directory, lambda request: pool.answer(request, describe)),
                ):
                    parts = recipe_parts(
                        context,
                        engine=pool.router,
                        trainer=trainer,
                        codec=lambda source: codec.with_format(source.data),
                        rewards=functools.partial(training_scorer, rewards=rewards),
                        held_out_rewards=functools.partial(evaluation_scorer, rewards=rewards),
                        teachers=teachers,
                    )
                    yield replace(
                        parts,
                        ready=functools.partial(_ready, trainer_start, pool.router, plan.transport),
                        make_evaluations=lambda board: _evaluations(context, launcher, board),
                        num_restarts=lambda: pool.router.restarts,
                        processes=lambda: [
                            *pool.statuses(),
                            *_other_processes(launcher, nodes, pool),
                            ProcessStatus(role="reward-0", node=nodes[0].name, pid=rewards.pid, open=rewards.num_open),
                        ],
                    )
            await trainer.stop()


async def _ready(trainer_start: Awaitable[None], router: Router, transport: Transport) -> None:
    """Wait until training can begin."""
    await trainer_start
    if transport == "broadcast":
        await router.meet()


async def _describe(
    context: RunContext, weights: Path, servers: EngineServers, nodes: Sequence[Node], model: Awaitable[str]
) -> LiveRun:
    """Describe the run to those who want to join it."""
    return LiveRun(
        arl=arl.__version__,
        only_host=host_identity() if all(is_loopback(node.address) for node in nodes) else None,
        weights=str(weights) if context.plan.transport in ("file", "ipc") else None,
        versions=context.versions,
        model=await model,
        like=servers.resources[0],
    )


def _other_processes(launcher: Launcher, nodes: Sequence[Node], pool: EnginePool) -> Iterator[ProcessStatus]:
    """Describe the launcher's processes that are no engines of the pool. Nothing is asked over the network."""
    for process in launcher.processes:
        if process.role not in pool.members:
            code = process.exit_code
            state = None if code is None else f"ended, code {code}"
            yield ProcessStatus(role=process.role, node=nodes[process.node].name, pid=process.pid or None, state=state)


def _evaluations(context: RunContext, launcher: Launcher, board: Scoreboard) -> BackgroundEvaluations:
    """Make the evaluations of a run: checkpoints are measured by one more process of its launcher."""
    directory = context.directory.absolute()
    resources = context.plan.placement.evaluation
    assert resources is not None, "placed with eval.every"

    async def process(version: int) -> Process:
        command = evaluation_command(context.recipe, directory, version, resources)
        return await launcher.start("evaluation", command, resources)

    return BackgroundEvaluations(board, context.version, context.is_done, process)
