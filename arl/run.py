"""`arl train`: one recipe, one run, one TaskGroup.

recipe ─► preflight ─► warm-up (cached) ─► engines ∥ ranks ∥ reward workers ─► evaluate ─► controller ─► evaluate
            │                                                                       │
            └ everything that can be refused is refused here                        └ metrics, trajectories, trace
"""

import asyncio
import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import msgspec
from msgspec import Struct

from arl.data.problems import ProblemOrder, load_problems
from arl.data.tokenizer import HuggingFaceCodec, load_codec
from arl.engine.base import Engine
from arl.errors import ArlError, DataError, EngineError, InputError, ProcessDied, RecipeError, TrainerError, leaves
from arl.evaluate import evaluate
from arl.imports import import_function
from arl.launch.local import LocalProcesses
from arl.launch.placement import NoLease, Placement, SharedDeviceLease, place, visible_cores, visible_gpus
from arl.metrics.console import ConsoleDisplay
from arl.metrics.fingerprint import weights_sha256
from arl.metrics.recorder import Recorder
from arl.metrics.summary import Summary, mean_idle
from arl.metrics.trackers import make_trackers
from arl.recipe import Recipe
from arl.recipe_file import dump_recipe
from arl.rollout.controller import Audit, Checkpoints, Controller
from arl.rollout.episodes import Episodes, Rewards
from arl.system import (
    connect_engines,
    new_key,
    open_rewards,
    open_trainer,
    publication_directory,
    reward_name,
    start_engines,
)
from arl.train.base import Trainer
from arl.types import Accuracy, Problem, WeightUpdate
from arl.warmup import context_length, starting_codec, starting_model

DEATH_SECONDS = 3.0  # a connection breaks before the process behind it has wholly ended


@dataclass(frozen=True)
class Outcome:
    """What is left of a run when its processes are gone."""

    before: Accuracy | None
    after: Accuracy | None
    training_seconds: float
    recorder: Recorder
    audit: Audit


class Plan(Struct, frozen=True):
    """What preflight found out."""

    training: list[Problem]
    held_out: list[Problem]
    placement: Placement


def preflight(recipe: Recipe) -> Plan:
    """Refuse whatever can be known to fail, before anything is started or written.

    Raises:
        InputError: a function that does not import, problems that cannot be read, devices that are not there.
    """
    import_function(reward_name(recipe), "reward.function")
    import_function(recipe.rollout.env, "rollout.env")
    training, held_out = load_problems(recipe.data, recipe.seed)
    if recipe.eval.problems and not held_out:
        raise DataError("eval.problems: no problem is held out; raise data.eval_fraction or set eval.problems to 0")
    check_lengths(recipe, starting_codec(recipe), training + held_out)
    return Plan(training, held_out[: recipe.eval.problems], place(recipe, visible_cores(), visible_gpus()))


def check_lengths(recipe: Recipe, codec: HuggingFaceCodec, problems: list[Problem]) -> None:
    """Raises InputError if the longest prompts with a full response fit no micro-batch, or not the model."""
    longest = sorted(problems, key=lambda p: len(str(p.prompt)))[-16:]
    prompt = max(len(codec.encode_problem(p)) for p in longest)
    tokens, context = prompt + recipe.rollout.max_new_tokens, context_length(recipe)
    if tokens > recipe.train.capacity:
        raise InputError(f"train.capacity {recipe.train.capacity}: a trajectory may have {tokens} tokens; raise it")
    if tokens > context:
        raise InputError(
            f"rollout.max_new_tokens {recipe.rollout.max_new_tokens} after a prompt of {prompt} tokens exceeds the "
            f"model's context of {context}: lower it"
        )


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
    async with LocalProcesses(directory / "logs", recipe.deadlines.shutdown) as processes:
        try:
            model = await starting_model(recipe, directory, processes, display)
            outcome = await _run_system(recipe, plan, directory, model, processes, display)
        except Exception as error:
            raise await diagnosis(error, processes) from error
    summary = summarize(recipe, directory, outcome, perf_counter() - started)
    (directory / "summary.json").write_bytes(msgspec.json.format(msgspec.json.encode(summary)))
    return summary


async def _run_system(
    recipe: Recipe, plan: Plan, directory: Path, model: Path, processes: LocalProcesses, display: ConsoleDisplay
) -> Outcome:
    """Start both sides, train between two evaluations, save the last version."""
    codec, key = load_codec(str(model)), new_key()
    async with contextlib.AsyncExitStack() as stack:
        weights = stack.enter_context(publication_directory(model, directory))
        servers = await start_engines(recipe, model, plan.placement.engines, processes, key)
        trainer = await stack.enter_async_context(
            open_trainer(recipe, model, weights, plan.placement.ranks, processes, key)
        )
        rewards = await stack.enter_async_context(open_rewards(recipe, directory))
        engine = await stack.enter_async_context(connect_engines(servers, recipe, key))
        async with asyncio.TaskGroup() as tasks:
            watcher = tasks.create_task(processes.watch(), name="process watcher")
            run = Run(recipe, plan, directory, engine, trainer, codec, rewards, display)
            outcome = await run.main()
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
        codec: HuggingFaceCodec,
        rewards: Rewards,
        display: ConsoleDisplay,
    ) -> None:
        self._recipe, self._plan, self._directory, self._display = recipe, plan, directory, display
        self._engine, self._trainer = engine, trainer
        env = import_function(recipe.rollout.env, "rollout.env")
        self._episodes = Episodes(engine, codec, rewards, env, recipe.rollout, recipe.seed)

    async def main(self) -> Outcome:
        recipe, engine, episodes = self._recipe, self._engine, self._episodes
        before = await self._evaluate("before training")
        await self._trainer.ready()
        trackers = make_trackers(recipe, self._directory)
        generated_before = episodes.tokens_generated
        with Recorder(
            self._directory,
            recipe.output.trajectories,
            trackers,
            self._display,
            lambda: engine.busy_seconds,
            lambda: episodes.tokens_generated - generated_before,
        ) as recorder:
            if before is not None:
                recorder.evaluated(before)
            controller = self._controller(recorder)
            self._display.begin("training", recipe.train.steps)
            await controller.run()
            seconds = recorder.seconds
            after = await self._evaluate("after training")
            if after is not None:
                recorder.evaluated(after)
        return Outcome(before, after, seconds, recorder, controller.audit)

    def _controller(self, recorder: Recorder) -> Controller:
        recipe, size = self._recipe, self._recipe.rollout.group_size
        lease = SharedDeviceLease(self._engine) if recipe.mode == "collocated" else NoLease()
        return Controller(
            recipe.rollout,
            recipe.deadlines,
            recipe.train.steps,
            self._engine,
            self._trainer,
            ProblemOrder(self._plan.training, recipe.seed),
            lambda name, problem: self._episodes.run_group(name, problem, size, recipe.rollout.temperature),
            lease,
            recorder,
            Checkpoints(self._directory / "checkpoints", recipe.output.checkpoint_every),
        )

    async def _evaluate(self, when: str) -> Accuracy | None:
        if not self._plan.held_out:
            return None
        version, temperature = self._engine.loaded_version, self._recipe.eval.temperature
        accuracy = await evaluate(self._episodes, self._plan.held_out, temperature, f"eval{version}")
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


async def diagnosis(error: BaseException, processes: LocalProcesses) -> BaseException:
    """The one exception to show for `error`: a process's death before the broken connections it caused."""
    causes = sorted(leaves(error), key=lambda cause: not isinstance(cause, ArlError))
    if isinstance(causes[0], EngineError | TrainerError | ProcessDied):
        return await processes.first_death(DEATH_SECONDS) or causes[0]
    return causes[0]


async def evaluate_models(recipe: Recipe, models: Sequence[Path]) -> list[Accuracy]:
    """Accuracy of each of `models`, all of one shape, on the recipe's held-out problems, on engines of its own.

    Raises:
        ArlError: as `train`; nothing is left behind.
    """
    plan, key = preflight(recipe), new_key()
    if not plan.held_out:
        raise InputError("eval.problems 0: nothing to evaluate on")
    with tempfile.TemporaryDirectory(prefix="arl-eval-") as name:
        directory = Path(name)
        async with LocalProcesses(directory / "logs", recipe.deadlines.shutdown) as processes:
            servers = await start_engines(recipe, models[0], plan.placement.engines, processes, key)
            async with open_rewards(recipe, directory) as rewards, connect_engines(servers, recipe, key) as engine:
                env = import_function(recipe.rollout.env, "rollout.env")
                codec = load_codec(str(models[0]))
                episodes = Episodes(engine, codec, rewards, env, recipe.rollout, recipe.seed)
                accuracies = []
                for version, model in enumerate(models):
                    if version:
                        await engine.update_weights(WeightUpdate(version, str(model)))
                    label = f"eval{version}"
                    accuracies.append(await evaluate(episodes, plan.held_out, recipe.eval.temperature, label))
                return accuracies


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
