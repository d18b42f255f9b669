"""Run in virtual time: engines, trainer and rewards really compute, in this process, and cost virtual seconds.

    operation ─► computed at once, when it starts ─► sleep what it costs (recipe section `virtual`) ─► takes effect

There are no threads, no other processes and no random order, so two runs of one recipe agree to the last bit.
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from arl.config.recipe import VIRTUAL, Recipe
from arl.data.tokenizer import load_codec
from arl.engine.backend import find_in_process_backend
from arl.engine.router import Router
from arl.launch.devices import hidden_devices
from arl.metrics.run_files import LOGS
from arl.metrics.spans import unrecorded_spans
from arl.rollout.episodes import Rewards
from arl.run.evaluation.during import InPlaceEvaluations
from arl.run.evaluation.evaluate import measure_suite
from arl.run.evaluation.scoreboard import Scoreboard
from arl.run.evaluation.scores import with_mean
from arl.run.evaluation.suite import Suite
from arl.run.failures import reported_failures
from arl.run.rewards import evaluation_scorer, inline_rewards, reward_name, training_scorer
from arl.run.teachers import open_teachers_in_process
from arl.run.world import Parts, RunContext, World, recipe_parts
from arl.sandbox.current import configured
from arl.sync.publication_directory import publication_directory
from arl.train.in_process import InProcessTrainer
from arl.types import Accuracy, Grade, Problem, Response, StartingVersions


class VirtualWorld(World):
    """Implement World: everything in one process, in virtual time."""

    traits = VIRTUAL

    def process_settings(self) -> AbstractContextManager[None]:
        """See World. Computes with one thread and deterministic kernels, on the CPU."""
        return repeatable()

    @contextlib.asynccontextmanager
    async def open(self, context: RunContext) -> AsyncIterator[Parts]:
        """See World."""
        recipe = context.recipe
        plan = context.plan
        versions = context.versions
        rewards = inline_rewards(recipe, context.directory / LOGS, context.display.note)
        idle = asyncio.Semaphore(recipe.reward.workers)
        cost = recipe.virtual.reward
        with (
            configured(recipe.sandbox),
            publication_directory(recipe, context.model, context.directory, plan.lags, plan.transport) as publications,
        ):
            trainer = InProcessTrainer(recipe, versions, publications, plan.lags)
            async with open_engines(recipe, versions) as engine, open_teachers_in_process(recipe) as teachers:
                codec = load_codec(versions.model, recipe.data)
                parts = recipe_parts(
                    context,
                    engine=engine,
                    trainer=trainer,
                    codec=lambda source: codec.with_format(source.data),
                    rewards=lambda source: TimedRewards(training_scorer(source, rewards), cost, idle),
                    held_out_rewards=lambda source: TimedRewards(evaluation_scorer(source, rewards), cost, idle),
                    teachers=teachers,
                )
                yield replace(
                    parts,
                    make_evaluations=evaluations_in_place(context, trainer.save_model),
                    num_restarts=lambda: engine.restarts,
                )


@contextlib.asynccontextmanager
async def open_engines(recipe: Recipe, versions: StartingVersions) -> AsyncIterator[Router]:
    """Open engine.replicas engines with the oldest of `versions`; their passes and loads take virtual time."""
    backend = find_in_process_backend(recipe.engine.kind)
    async with contextlib.AsyncExitStack() as stack:
        opened = [backend.open_in_process(recipe, versions) for _ in range(recipe.engine.replicas)]
        engines = [await stack.enter_async_context(engine) for engine in opened]
        yield Router(engines)


def evaluations_in_place(
    context: RunContext, save: Callable[[Path], None]
) -> Callable[[Scoreboard], InPlaceEvaluations]:
    """Return what makes the evaluations of a run in one process; `save` writes the trainer's weights."""
    measure = functools.partial(measure_in_process, context, context.plan.measured)
    return lambda board: InPlaceEvaluations(board, save, measure)


async def measure_in_process(
    context: RunContext, suites: Sequence[Suite], model: Path, version: int
) -> tuple[Accuracy, ...]:
    """Measure `model`, which is `version`, on `suites`, with engines and rewards of their own in this process."""
    recipe = context.recipe
    functions = [reward_name(suite.recipe) for suite in suites]
    rewards = inline_rewards(recipe, context.directory / LOGS, context.display.note, functions)
    codec = load_codec(str(model), suites[0].recipe.data)
    accuracies = []
    with unrecorded_spans():  # these engines have the names of the run's own
        async with (
            reported_failures(),
            open_engines(recipe.without_lora, StartingVersions(str(model), version)) as engine,
        ):
            for suite in suites:
                prompts = codec.with_format(suite.recipe.data)
                scorer = evaluation_scorer(suite.recipe, rewards)
                accuracies.append(await measure_suite(suite, version, engine, prompts, scorer, context.plan.context))
    return with_mean(accuracies)


class TimedRewards:
    """Score in place, and return the grade when as many worker processes would have it.

    Waiting for a worker needs no deadline of its own, because every busy one is idle again after one call's cost.

    Args:
        seconds: virtual, of one call of the reward function.
        idle: as many as there are workers; each makes one call at a time.
    """

    def __init__(self, rewards: Rewards, seconds: float, idle: asyncio.Semaphore) -> None:
        self._rewards = rewards
        self._seconds = seconds
        self._idle = idle

    async def score(self, problem: Problem, response: Response) -> Grade:
        """See Rewards."""
        async with self._idle:
            grade = await self._rewards.score(problem, response)
            await asyncio.sleep(self._seconds)
        return grade


@contextlib.contextmanager
def repeatable() -> Iterator[None]:
    """Compute on the CPU, with one thread and deterministic kernels; leave no process group behind."""
    threads = torch.get_num_threads()
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    had_group = dist.is_initialized()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        with hidden_devices():
            yield
    finally:
        torch.use_deterministic_algorithms(is_deterministic)
        torch.set_num_threads(threads)
        if dist.is_initialized() and not had_group:
            dist.destroy_process_group()
