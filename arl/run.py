"""`arl train`: one recipe, one run, one TaskGroup.

recipe ─► preflight ─► warm-up (cached) ─► engines ∥ ranks ∥ reward workers ─► evaluate ─► controller ─► evaluate
            │                                                                       │
            └ everything that can be refused is refused here                        └ metrics, trajectories, trace
"""

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import msgspec

from arl.checkpoint import RunCheckpoints
from arl.clock import deadline
from arl.collector import rare_collections
from arl.data.codec import TextCodec
from arl.data.problems import ProblemOrder
from arl.data.tokenizer import load_codec
from arl.engine.base import Engine
from arl.errors import InputError, RecipeError
from arl.evaluate import evaluate, held_out_episodes, make_episodes
from arl.imports import import_function
from arl.launch.local import LocalProcesses
from arl.launch.placement import NoLease, SharedDeviceLease
from arl.metrics.console import ConsoleDisplay
from arl.metrics.fingerprint import weights_sha256
from arl.metrics.recorder import Recorder
from arl.metrics.summary import Summary, mean_idle
from arl.metrics.trackers import make_trackers
from arl.preflight import Plan, preflight
from arl.recipe import Recipe
from arl.recipe_file import dump_recipe
from arl.rollout.controller import Audit, Controller
from arl.rollout.episodes import Rewards
from arl.rollout.filters import keep_all
from arl.rollout.staleness import StalenessGate
from arl.system import (
    connect_engines,
    new_key,
    open_rewards,
    open_trainer,
    publication_directory,
    reported_failures,
    start_engines,
    told_deaths,
)
from arl.train.base import Trainer
from arl.types import Accuracy
from arl.warmup import starting_model


@dataclass(frozen=True)
class Outcome:
    """What is left of a run when its processes are gone."""

    before: Accuracy | None
    after: Accuracy | None
    training_seconds: float
    recorder: Recorder
    audit: Audit


async def train(recipe: Recipe, display: ConsoleDisplay) -> Summary:
    """Run `recipe` from its start to its end.

    Raises:
        ArlError: the one failure that ended the run; every process of it is gone by then.
    """
    if recipe.clock != "wall":
        raise RecipeError(f"clock {recipe.clock}: processes run on the wall clock; set clock: wall, or use `arl train`")
    started = perf_counter()
    plan = preflight(recipe)
    directory = new_run_directory(recipe)
    (directory / "recipe.yaml").write_text(dump_recipe(recipe))
    display.note(f"run directory {directory}")
    async with (
        reported_failures(),
        contextlib.AsyncExitStack() as last,  # what goes when every process is gone
        LocalProcesses(directory / "logs", recipe.deadlines.shutdown) as processes,
        told_deaths(processes),
    ):
        model = await starting_model(recipe, directory, processes, display)
        weights = last.enter_context(publication_directory(recipe, model, directory))
        outcome = await _run_system(recipe, plan, directory, model, weights, processes, display)
    summary = summarize(recipe, directory, outcome, perf_counter() - started)
    (directory / "summary.json").write_bytes(msgspec.json.format(msgspec.json.encode(summary)))
    return summary


async def _run_system(
    recipe: Recipe,
    plan: Plan,
    directory: Path,
    model: Path,
    weights: Path,
    processes: LocalProcesses,
    display: ConsoleDisplay,
) -> Outcome:
    """Start both sides at once, train between two evaluations."""
    codec, key = load_codec(str(model)), new_key()
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(rare_collections())
        servers = await start_engines(recipe, model, plan.placement.engines, processes, key)
        trainer = await stack.enter_async_context(
            open_trainer(recipe, model, weights, plan.placement.ranks, processes, key)
        )
        async with asyncio.TaskGroup() as tasks:
            watcher = tasks.create_task(processes.watch(), name="process watcher")
            ready = tasks.create_task(trainer.ready(), name="trainer start")
            rewards = await stack.enter_async_context(open_rewards(recipe, directory / "logs"))
            engine = await stack.enter_async_context(connect_engines(servers, recipe, key))
            run = Run(recipe, plan, directory, engine, trainer, codec, rewards, display)
            before = await run.evaluate("before training")
            await ready
            outcome = await run.train(before)
            watcher.cancel()
        await trainer.stop()
    return outcome


class Run:
    """One run over a live system: evaluate, train, evaluate."""

    def __init__(
        self,
        recipe: Recipe,
        plan: Plan,
        directory: Path,
        engine: Engine,
        trainer: Trainer,
        codec: TextCodec,
        rewards: Rewards,
        display: ConsoleDisplay,
    ) -> None:
        self._recipe, self._plan, self._directory, self._display = recipe, plan, directory, display
        self._engine, self._trainer = engine, trainer
        self._episodes = make_episodes(recipe, plan, engine, codec, rewards)
        self._held_out = held_out_episodes(recipe, plan, engine, codec, rewards)

    async def train(self, before: Accuracy | None) -> Outcome:
        """Train, then evaluate the last version; `before` is the first one's accuracy."""
        recipe, engine, episodes = self._recipe, self._engine, self._episodes
        trackers = make_trackers(recipe, self._directory)
        with Recorder(
            self._directory,
            recipe.output.trajectories,
            trackers,
            self._display,
            lambda: engine.busy_seconds,
            lambda: episodes.tokens_generated,
        ) as recorder:
            if before is not None:
                recorder.evaluated(before)
            controller = self._controller(recorder)
            self._display.begin("training", recipe.train.steps)
            await controller.run()
            seconds = recorder.seconds
            after = await self.evaluate("after training")
            if after is not None:
                recorder.evaluated(after)
        return Outcome(before, after, seconds, recorder, controller.audit)

    def _controller(self, recorder: Recorder) -> Controller:
        recipe, rollout, steps = self._recipe, self._recipe.rollout, self._recipe.train.steps
        return Controller(
            rollout,
            recipe.deadlines,
            steps,
            steps,
            self._engine,
            self._trainer,
            StalenessGate(rollout.problems_per_step, rollout.staleness),
            ProblemOrder(self._plan.training, recipe.seed),
            self._episodes,
            keep_all if rollout.filter is None else import_function(rollout.filter, "rollout.filter"),
            SharedDeviceLease(self._engine) if recipe.mode == "collocated" else NoLease(),
            recorder,
            RunCheckpoints(self._directory / "checkpoints", recipe.output.checkpoint_every, steps, self._trainer),
        )

    async def evaluate(self, when: str) -> Accuracy | None:
        if not self._plan.held_out:
            return None
        name = f"eval{self._engine.loaded_version}"
        async with deadline(self._recipe.deadlines.step, "controller", f"the evaluation {when}"):
            accuracy = await evaluate(self._held_out, self._plan.held_out, name)
        self._display.note(f"accuracy {when}: {accuracy.mean_reward:.3f} on {accuracy.problems} held-out problems")
        return accuracy


def summarize(recipe: Recipe, directory: Path, outcome: Outcome, seconds: float) -> Summary:
    """The run in a page; `seconds` is the whole command's, on the run's clock."""
    before, after, recorder = outcome.before, outcome.after, outcome.recorder
    steps = [record for record in recorder.records if "tokens/trained" in record]
    return Summary(
        directory=str(directory),
        accuracy_before=before.mean_reward if before else None,
        accuracy_after=after.mean_reward if after else None,
        eval_problems=after.problems if after else 0,
        seconds=seconds,
        training_seconds=outcome.training_seconds,
        steps=len(steps),
        tokens_trained=int(sum(record["tokens/trained"] for record in steps)),
        token_ages=dict(sorted(recorder.token_ages.items())),
        trajectories_spanning_versions=recorder.num_spanning,
        groups={"trained": outcome.audit.trained, **outcome.audit.lost},
        idle_trainer=mean_idle(steps, "trainer"),
        idle_engine=mean_idle(steps, "engine"),
        weights_sha256=weights_sha256(directory / "checkpoints" / f"step_{recipe.train.steps}"),
    )


def new_run_directory(recipe: Recipe) -> Path:
    """<directory>/<name>, or the first of <name>-2, <name>-3… that does not exist: a run never overwrites another."""
    first, number = recipe.run_directory, 1
    directory = first
    while True:
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            number += 1
            directory = first.with_name(f"{first.name}-{number}")
        except OSError as error:
            raise InputError(f"output.directory {first.parent}: cannot be written ({error.strerror})") from error
        else:
            return directory
