"""`arl train`: one recipe, one run, one TaskGroup.

recipe ─► begin ─► warm-up (cached) ─► engines ∥ ranks ∥ reward workers ─► evaluate ─► controller ─► evaluate
            │        or a checkpoint                                                     │
            └ everything that can be refused is refused here                             └ metrics, trajectories, trace
"""

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import msgspec

from arl import clock
from arl.clock import deadline
from arl.config.imports import import_function
from arl.config.recipe import Recipe
from arl.data.problems import ProblemOrder
from arl.data.text_codec import TextCodec
from arl.data.tokenizer import load_codec
from arl.engine.router import Router
from arl.errors import RecipeError
from arl.launch.address import new_key
from arl.launch.base import Launcher
from arl.launch.launchers import make_launcher
from arl.metrics.console import ConsoleDisplay
from arl.metrics.fingerprint import weights_sha256
from arl.metrics.names import number
from arl.metrics.recorder import Recorder
from arl.metrics.summary import Summary, mean_idle
from arl.metrics.trackers import make_trackers
from arl.rollout.base import Admission
from arl.rollout.controller import Audit, Controller, Segment
from arl.rollout.controller_state import ControllerState
from arl.rollout.episodes import Rewards
from arl.rollout.exact_lag import LagSchedule
from arl.rollout.filters import keep_all
from arl.rollout.lease import NoLease, SharedDeviceLease
from arl.rollout.staleness import StalenessGate
from arl.run.checkpoint import RunCheckpoints, RunState
from arl.run.engines import EngineServers, connect_engines
from arl.run.evaluate import evaluate, held_out_episodes, make_episodes
from arl.run.failures import explain_deaths, reported_failures
from arl.run.gc_pacing import rare_collections
from arl.run.ranks import open_trainer
from arl.run.resume import Origin, begin
from arl.run.rewards import open_rewards
from arl.run.starting_model import starting_model
from arl.sync.publication_directory import publication_directory
from arl.sync.verify import refuse_other_tensors
from arl.train.base import Trainer
from arl.types import Accuracy, StartingVersions


@dataclass(frozen=True)
class Outcome:
    """What is left of a run when its processes are gone."""

    before: Accuracy | None
    after: Accuracy | None
    training_seconds: float
    recorder: Recorder
    audit: Audit


def train(recipe: Recipe, display: ConsoleDisplay, resume: Path | None = None) -> Summary:
    """Run `recipe` from its start, or with `resume`, its file, from the last checkpoint of its newest run, to its end.

    Raises:
        ArlError: the one failure that ended the run; every process of it is gone by then.
    """
    if recipe.world != "wall":
        raise RecipeError(f"world {recipe.world}: processes run on the wall clock; set world: wall, or use `arl train`")
    started = perf_counter()
    with begin(recipe, display, resume) as origin:
        start = origin.time + perf_counter() - started
        outcome, seconds = clock.run(lambda: _train(recipe, origin, display), start=start)
        return summarize(recipe, origin.directory, outcome, seconds)


async def _train(recipe: Recipe, origin: Origin, display: ConsoleDisplay) -> tuple[Outcome, float]:
    """What happened, and the clock at its end."""
    directory = origin.directory
    async with (
        reported_failures(),
        contextlib.AsyncExitStack() as last,  # what goes when every process is gone
        make_launcher(recipe, directory / "logs") as launcher,
        explain_deaths(launcher),
    ):
        model = origin.checkpoint or await starting_model(recipe, directory, launcher, display)
        plan = origin.plan
        weights = last.enter_context(publication_directory(recipe, model, directory, plan.lags, plan.transport))
        outcome = await _run_system(recipe, origin, origin.versions(model), weights, launcher, display)
    return outcome, clock.now()


async def _run_system(
    recipe: Recipe,
    origin: Origin,
    versions: StartingVersions,
    weights: Path,
    launcher: Launcher,
    display: ConsoleDisplay,
) -> Outcome:
    """Start both sides at once, train between two evaluations."""
    key, placement = new_key(), origin.plan.placement
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(rare_collections())
        servers = EngineServers(recipe, versions, placement.engines, launcher, key)
        started = await servers.start_all()
        trainer = await stack.enter_async_context(
            open_trainer(
                recipe, versions, weights, placement.ranks, launcher, key, origin.plan.lags, origin.plan.transport
            )
        )
        codec = load_codec(versions.model)  # takes its time while the others start
        async with asyncio.TaskGroup() as tasks:
            ready = tasks.create_task(trainer.ready(), name="trainer start")
            rewards = await stack.enter_async_context(open_rewards(recipe, origin.directory / "logs"))
            async with connect_engines(servers, started, display.note, trainer) as engine:
                run = Run(recipe, origin, engine, trainer, codec, rewards, display)
                before = await run.evaluate_before()
                await ready
                refuse_other_tensors(trainer.tensors, Path(versions.served))
                outcome = await run.train(before, until=recipe.train.steps, evaluate=True)
        await trainer.stop()
    return outcome


class Run:
    """One run, or a segment of it between two checkpoints, over a live system: evaluate, train, evaluate."""

    def __init__(
        self,
        recipe: Recipe,
        origin: Origin,
        engine: Router,
        trainer: Trainer,
        codec: TextCodec,
        rewards: Rewards,
        display: ConsoleDisplay,
    ) -> None:
        self._recipe, self._origin, self._display = recipe, origin, display
        self._engine, self._trainer = engine, trainer
        self._episodes = make_episodes(recipe, origin.plan, engine, codec, rewards)
        self._held_out = held_out_episodes(recipe, origin.plan, engine, codec, rewards)

    async def train(self, before: Accuracy | None, until: int, evaluate: bool) -> Outcome:
        """Train until version `until`, save it, and perhaps evaluate it; `before` is the first one's accuracy."""
        recipe, engine, episodes, state = self._recipe, self._engine, self._episodes, self._origin.state
        trackers = make_trackers(recipe, self._origin.directory)
        with Recorder(
            self._origin.directory,
            recipe.output.trajectories,
            trackers,
            self._display,
            lambda: engine.busy_seconds,
            lambda: episodes.tokens_generated,
            lambda: engine.restarts,
            lambda: controller.audit.admitted,
            None if state is None else state.recorder,
        ) as recorder:
            if before is not None and state is None:
                recorder.evaluated(before)
            checkpoints = self._checkpoints(recorder, before)
            controller = self._controller(recorder, checkpoints, until)
            self._display.begin("training", recipe.train.steps)
            await controller.run()
            assert controller.version == until, f"ended at version {controller.version} of {until}"
            if episodes.num_diverged:
                self._display.note(f"{episodes.num_diverged} resumed episodes went another way than was recorded")
            seconds = recorder.seconds
            after = await self._evaluate("after training") if evaluate else None
            if after is not None:
                recorder.evaluated(after)
        return Outcome(before, after, seconds, recorder, controller.audit)

    def _checkpoints(self, recorder: Recorder, before: Accuracy | None) -> RunCheckpoints:
        recipe, inputs = self._recipe, self._origin.plan.sha256(self._recipe.train.steps)

        def cut(state: ControllerState) -> RunState:
            dump = recipe.model_dump(mode="json")
            return RunState(dump, inputs, clock.now(), before, state, recorder.cut())

        directory = self._origin.directory / "checkpoints"
        directory.mkdir(exist_ok=True)
        return RunCheckpoints(directory, recipe, self._engine, self._trainer, cut, self._origin.checkpoint)

    def _controller(self, recorder: Recorder, checkpoints: RunCheckpoints, until: int) -> Controller:
        recipe, rollout, state = self._recipe, self._recipe.rollout, self._origin.state
        return Controller(
            Segment(
                rollout=rollout,
                deadlines=recipe.deadlines,
                steps=recipe.train.steps,
                until=until,
                engine=self._engine,
                trainer=self._trainer,
                admission=self._admission(),
                problems=ProblemOrder(self._origin.plan.training, recipe.seed),
                groups=self._episodes,
                keep=keep_all if rollout.filter is None else import_function(rollout.filter, "rollout.filter"),
                lease=SharedDeviceLease(self._engine) if recipe.mode == "collocated" else NoLease(),
                observer=recorder,
                checkpoints=checkpoints,
                restored=None if state is None else state.controller,
            )
        )

    def _admission(self) -> Admission:
        if self._origin.plan.lags is not None:
            return LagSchedule(self._origin.plan.lags)
        rollout = self._recipe.rollout
        assert rollout.staleness is not None
        return StalenessGate(rollout.problems_per_step, rollout.staleness)

    async def evaluate_before(self) -> Accuracy | None:
        """The first version's accuracy, measured now or by the run that is resumed."""
        state = self._origin.state
        return state.before if state is not None else await self._evaluate("before training")

    async def _evaluate(self, when: str) -> Accuracy | None:
        held_out = self._origin.plan.held_out
        if not held_out:
            return None
        name = f"eval{self._engine.loaded_version}"
        async with deadline(self._recipe.deadlines.step, "controller", f"the evaluation {when}"):
            accuracy = await evaluate(self._held_out, held_out, name)
        self._display.note(f"accuracy {when}: {accuracy.mean_reward:.3f} on {accuracy.problems} held-out problems")
        return accuracy


def summarize(recipe: Recipe, directory: Path, outcome: Outcome, seconds: float) -> Summary:
    """The run in a page, also written to its summary.json; `seconds` is the whole command's, on the run's clock."""
    before, after, recorder, audit = outcome.before, outcome.after, outcome.recorder, outcome.audit
    in_flight = audit.admitted - audit.trained - audit.lost.total()
    steps = [record for record in recorder.records if "tokens/trained" in record]
    summary = Summary(
        directory=str(directory),
        accuracy_before=before.mean_reward if before else None,
        accuracy_after=after.mean_reward if after else None,
        eval_problems=after.problems if after else 0,
        seconds=seconds,
        training_seconds=outcome.training_seconds,
        steps=len(steps),
        tokens_trained=int(sum(number(record, "tokens/trained") for record in steps)),
        token_ages=dict(sorted(recorder.token_ages.items())),
        trajectories_spanning_versions=recorder.num_spanning,
        groups={"trained": audit.trained, **audit.lost, "in flight": in_flight},
        selection=recorder.selection,
        selection_bias=recorder.selection.warnings(),
        idle_trainer=mean_idle(steps, "trainer"),
        idle_engine=mean_idle(steps, "engine"),
        weights_sha256=weights_sha256(directory / "checkpoints" / f"step_{recipe.train.steps}"),
    )
    partial = directory / ".summary.json"
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(summary)))
    partial.rename(directory / "summary.json")  # a run that has it is finished
    return summary
