"""`arl train` with clock: virtual. See arl.virtual.

wall clock      preflight ─► run directory ─► warm-up, if it is not cached
virtual time    engines, trainer, rewards ─► Run: evaluate ─► controller ─► evaluate
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from time import perf_counter

import msgspec
import torch
import torch.distributed as dist

from arl import clock
from arl.data.tokenizer import load_codec
from arl.engine.embedded import EmbeddedEngine
from arl.engine.router import Router
from arl.imports import import_function
from arl.launch.local import LocalProcesses
from arl.metrics.console import ConsoleDisplay
from arl.metrics.summary import Summary
from arl.models.load import load_model
from arl.preflight import Plan, preflight
from arl.recipe import Recipe
from arl.recipe_file import dump_recipe
from arl.reward.pool import InlineRewards
from arl.run import Outcome, Run, new_run_directory, summarize
from arl.system import publication_directory, reported_failures, reward_name, told_deaths
from arl.types import Problem
from arl.virtual.trainer import InProcessTrainer
from arl.warmup import starting_model


def train_virtually(recipe: Recipe, display: ConsoleDisplay) -> Summary:
    """Run `recipe` from its start to its end, in this thread.

    Raises:
        ArlError: the one failure that ended the run.
    """
    started = perf_counter()
    with _repeatable():
        plan = preflight(recipe)
        directory = new_run_directory(recipe)
        (directory / "recipe.yaml").write_text(dump_recipe(recipe))
        display.note(f"run directory {directory}")
        model = clock.run(lambda: _starting_model(recipe, directory, display))
        outcome, seconds = clock.run(lambda: _run(recipe, plan, directory, model, display), virtual=True)
    summary = summarize(recipe, directory, outcome, seconds)
    (directory / "summary.json").write_bytes(msgspec.json.format(msgspec.json.encode(summary)))
    display.note(f"computed in {perf_counter() - started:.1f} real seconds")
    return summary


async def _starting_model(recipe: Recipe, directory: Path, display: ConsoleDisplay) -> Path:
    """On the wall clock: a warm-up that is not cached is a process."""
    async with (
        reported_failures(),
        LocalProcesses(directory / "logs", recipe.deadlines.shutdown) as processes,
        told_deaths(processes),
    ):
        return await starting_model(recipe, directory, processes, display)


async def _run(
    recipe: Recipe, plan: Plan, directory: Path, model: Path, display: ConsoleDisplay
) -> tuple[Outcome, float]:
    """What happened, and the virtual seconds it took."""
    function = import_function(reward_name(recipe), "reward.function")
    rewards = TimedRewards(InlineRewards(function), recipe.virtual.reward, recipe.reward.workers)
    async with reported_failures():
        with publication_directory(recipe, model, directory, plan.lags) as publications:
            trainer = InProcessTrainer(recipe, model, publications, plan.lags)
            async with open_engines(recipe, model) as engine:
                run = Run(recipe, plan, directory, engine, trainer, load_codec(str(model)), rewards, display)
                outcome = await run.train(await run.evaluate("before training"))
    return outcome, clock.now()


@contextlib.asynccontextmanager
async def open_engines(recipe: Recipe, model: Path) -> AsyncIterator[Router]:
    """engine.replicas embedded engines, each with a model of its own, whose passes and loads take virtual time."""
    config, costs = recipe.engine, recipe.virtual

    def pass_seconds(prefill_tokens: int, decode_tokens: int) -> float:
        return costs.engine_pass + costs.decode_token * decode_tokens + costs.prefill_token * prefill_tokens

    async with contextlib.AsyncExitStack() as stack:
        engines = [
            EmbeddedEngine(
                load_model(model, config.dtype),
                slots=config.slots,
                kv_policy=config.kv_policy,
                stream_interval=config.stream_interval,
                step_cost=pass_seconds,
                load_seconds=costs.load,
            )
            for _ in range(config.replicas)
        ]
        yield Router([await stack.enter_async_context(engine) for engine in engines])


class TimedRewards:
    """Rewards as `workers` processes would give them, `seconds` a call: scored in place, known later.

    Every busy worker is idle again within one group's cost, so waiting for one needs no deadline of its own.
    """

    def __init__(self, rewards: InlineRewards, seconds: float, workers: int) -> None:
        self._rewards, self._seconds = rewards, seconds
        self._idle = asyncio.Semaphore(workers)

    async def score(self, problem: Problem, responses: Sequence[str], truncated: Sequence[bool]) -> list[float]:
        async with self._idle:
            scores = await self._rewards.score(problem, responses, truncated)
            await asyncio.sleep(self._seconds * len(responses))
        return scores


@contextlib.contextmanager
def _repeatable() -> Iterator[None]:
    """The CPU, one thread, deterministic kernels, and no process group left behind."""
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    gpus, group = os.environ.get("CUDA_VISIBLE_DEVICES"), dist.is_initialized()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(strict)
        torch.set_num_threads(threads)
        if gpus is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus
        if dist.is_initialized() and not group:
            dist.destroy_process_group()
