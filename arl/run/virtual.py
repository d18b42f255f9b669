"""`arl train` with world: virtual. See arl.virtual.

wall clock      begin: new or resumed ─► warm-up, if it is not cached
virtual time    engines, trainer, rewards ─► Run: evaluate ─► controller ─► evaluate

A run is a chain of segments, each of which begins with the checkpoint that the last one ended with: there even a run
that nothing interrupts is built anew from the files, as a resumed one is, so that the two cannot differ.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import torch
import torch.distributed as dist

from arl import clock
from arl.config.imports import import_function
from arl.config.recipe import Recipe
from arl.data.tokenizer import load_codec
from arl.engine.embedded.batching import EmbeddedEngine
from arl.engine.router import Router
from arl.launch.devices import hidden_devices
from arl.launch.launchers import make_launcher
from arl.metrics.console import ConsoleDisplay
from arl.metrics.summary import Summary
from arl.models.load import load_model
from arl.reward.pool import InlineRewards
from arl.run.checkpoint import load_state, next_checkpoint
from arl.run.failures import explain_deaths, reported_failures
from arl.run.resume import Origin, begin
from arl.run.rewards import reward_name
from arl.run.starting_model import starting_model
from arl.run.train import Outcome, Run, summarize
from arl.sync.publication_directory import publication_directory
from arl.train.in_process import InProcessTrainer
from arl.types import Problem, StartingVersions


def train_virtually(recipe: Recipe, display: ConsoleDisplay, resume: Path | None = None) -> Summary:
    """Run `recipe` in this thread; arguments and errors are those of arl.run.train.train."""
    started = perf_counter()
    with repeatable(), begin(recipe, display, resume) as origin:
        outcome, seconds = _all_segments(recipe, origin, display)
        summary = summarize(recipe, origin.directory, outcome, seconds)
    display.note(f"computed in {perf_counter() - started:.1f} real seconds")
    return summary


def _all_segments(recipe: Recipe, origin: Origin, display: ConsoleDisplay) -> tuple[Outcome, float]:
    """What happened, and the virtual time at its end."""
    model = origin.checkpoint or clock.run(lambda: model_at_start(recipe, origin.directory, display))
    while origin.version < recipe.train.steps:
        _segment(recipe, origin, model, display)
        model = origin.directory / "checkpoints" / f"step_{next_checkpoint(recipe, origin.version)}"
        origin = replace(origin, checkpoint=model, state=load_state(model))
    return _segment(recipe, origin, model, display)


def _segment(recipe: Recipe, origin: Origin, model: Path, display: ConsoleDisplay) -> tuple[Outcome, float]:
    """From `origin` to the next checkpoint; from the last checkpoint, the evaluation."""
    return clock.run(lambda: _run(recipe, origin, model, display), virtual=True, start=origin.time)


async def model_at_start(recipe: Recipe, directory: Path, display: ConsoleDisplay) -> Path:
    """On the wall clock: a warm-up that is not cached is a process."""
    async with (
        reported_failures(),
        make_launcher(recipe, directory / "logs") as launcher,
        explain_deaths(launcher),
    ):
        return await starting_model(recipe, directory, launcher, display)


async def _run(recipe: Recipe, origin: Origin, model: Path, display: ConsoleDisplay) -> tuple[Outcome, float]:
    """What happened, and the virtual time at its end."""
    until, last = next_checkpoint(recipe, origin.version), origin.version == recipe.train.steps
    function = import_function(reward_name(recipe), "reward.function")
    rewards = TimedRewards(InlineRewards(function), recipe.virtual.reward, recipe.reward.workers)
    async with reported_failures():
        versions = origin.versions(model)
        lags, transport = origin.plan.lags, origin.plan.transport
        with publication_directory(recipe, model, origin.directory, lags, transport) as publications:
            trainer = InProcessTrainer(recipe, versions, publications, origin.directory / "logs", lags)
            async with open_engines(recipe, versions) as engine:
                run = Run(recipe, origin, engine, trainer, load_codec(str(model)), rewards, display)
                outcome = await run.train(await run.evaluate_before(), until, evaluate=last)
    return outcome, clock.now()


@contextlib.asynccontextmanager
async def open_engines(recipe: Recipe, versions: StartingVersions) -> AsyncIterator[Router]:
    """engine.replicas embedded engines with the oldest of `versions`; their passes and loads take virtual time."""
    config, costs = recipe.engine, recipe.virtual

    def pass_seconds(prefill_tokens: int, decode_tokens: int) -> float:
        return costs.engine_pass + costs.decode_token * decode_tokens + costs.prefill_token * prefill_tokens

    async with contextlib.AsyncExitStack() as stack:
        engines = [
            EmbeddedEngine(
                load_model(versions.served, config.dtype),
                slots=config.slots,
                kv_policy=config.kv_policy,
                stream_interval=config.stream_interval,
                version=versions.oldest,
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
def repeatable() -> Iterator[None]:
    """The CPU, one thread, deterministic kernels, and no process group left behind."""
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    group = dist.is_initialized()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        with hidden_devices():
            yield
    finally:
        torch.use_deterministic_algorithms(strict)
        torch.set_num_threads(threads)
        if dist.is_initialized() and not group:
            dist.destroy_process_group()
