"""`arl replay`: the virtual world with a recording in the place of generation.

plan ─► run directory of its own ─► model of version 0, once more
virtual time    RecordedGroups, RecordedEngine, InProcessTrainer ─► Controller ─► evaluation by engines that generate
"""

from collections.abc import Sequence
from pathlib import Path

from arl import clock
from arl.clock import deadline
from arl.config.imports import import_function
from arl.config.recipe import Recipe
from arl.data.tokenizer import load_codec
from arl.errors import RunError
from arl.metrics.console import ConsoleDisplay
from arl.metrics.recorder import Recorder
from arl.metrics.summary import Summary
from arl.metrics.trackers import make_trackers
from arl.reward.pool import InlineRewards
from arl.rollout.base import Observer
from arl.rollout.controller import Controller, Segment
from arl.rollout.controller_state import ControllerState
from arl.rollout.filters import keep_all
from arl.rollout.lease import NoLease, SharedDeviceLease
from arl.run.checkpoint import next_checkpoint
from arl.run.evaluate import evaluate, held_out_episodes
from arl.run.failures import reported_failures
from arl.run.replay.recorded import (
    PacedTrainer,
    RecordedEngine,
    RecordedGate,
    RecordedGroups,
    RecordedOrder,
    RecordedSchedule,
)
from arl.run.replay.replay_plan import Replay, plan_replay
from arl.run.resume import Origin, begin
from arl.run.rewards import reward_name
from arl.run.train import Outcome, summarize
from arl.run.virtual import model_at_start, open_engines, repeatable
from arl.sync.publication_directory import publication_directory
from arl.train.base import Trainer
from arl.train.in_process import InProcessTrainer
from arl.types import Accuracy, StartingVersions


class SavedModels:
    """The controller's Checkpoints: models as `output.checkpoint_every` says. A replay is not resumed, but repeated."""

    def __init__(self, directory: Path, recipe: Recipe, trainer: Trainer) -> None:
        self._directory, self._recipe, self._trainer = directory, recipe, trainer
        directory.mkdir()

    def path(self, version: int) -> Path:
        return self._directory / f"step_{version}"

    def due(self, version: int) -> bool:
        return version == next_checkpoint(self._recipe, version - 1)

    async def copy(self, version: int) -> None:
        """See Checkpoints; what is saved already stays."""
        if not self.path(version).exists():
            await self._trainer.save(self.path(version))

    async def write(self, state: ControllerState) -> None:
        """See Checkpoints."""
        del state
        await self._trainer.saved()


class _Quiet:
    """Shows the steps; what is lost may be lost by the hundred, and is counted in the summary."""

    def __init__(self, display: ConsoleDisplay) -> None:
        self.step = display.step

    def note(self, text: str) -> None:
        pass


def replay(run: Path, overrides: Sequence[str], display: ConsoleDisplay) -> tuple[Summary, Recipe]:
    """Train again from what the finished run in directory `run` recorded, with some settings changed.

    Raises:
        InputError: the run cannot be replayed, or not with these settings; nothing is written by then.
        RunError: not even one step can be trained.
    """
    plan = plan_replay(run, overrides)
    recipe, start = plan.recipe, plan.recording.start
    with repeatable(), begin(recipe, display, None) as origin:
        model = clock.run(lambda: model_at_start(recipe, origin.directory, display))
        before = plan.recording.before or clock.run(lambda: _accuracy(recipe, origin, model, 0), virtual=True)
        outcome, end = clock.run(lambda: _run(plan, origin, model, before, display), virtual=True, start=start)
        steps = {"steps": outcome.audit.trained // recipe.rollout.problems_per_step}
        recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update=steps)})
        return summarize(recipe, origin.directory, outcome, end - start), recipe


async def _run(
    plan: Replay, origin: Origin, model: Path, before: Accuracy | None, display: ConsoleDisplay
) -> tuple[Outcome, float]:
    """What happened, and the virtual time at its end."""
    recipe, recording, steps = plan.recipe, plan.recording, plan.recipe.train.steps
    async with reported_failures():
        lags, transport = origin.plan.lags, origin.plan.transport
        with publication_directory(recipe, model, origin.directory, lags, transport) as publications:
            trainer = _trainer(plan, origin, model, publications)
            engine = RecordedEngine(recording.loaded, recipe.virtual.load)
            bound = None if plan.as_recorded else recipe.rollout.staleness
            groups = RecordedGroups(recording.groups, engine, load_codec(str(model)), trainer, plan.patience, bound)
            models = SavedModels(origin.directory / "checkpoints", recipe, trainer)
            with Recorder(
                origin.directory,
                recipe.output.trajectories,
                make_trackers(recipe, origin.directory),
                _Quiet(display),
                lambda: engine.busy_seconds,
                lambda: groups.tokens_generated,
                lambda: 0,
                lambda: controller.audit.admitted,
            ) as recorder:
                if before is not None:
                    recorder.evaluated(before)
                controller = _controller(plan, engine, trainer, groups, recorder, models)
                display.begin("replaying", steps)
                await controller.run()
                version = controller.version
                seconds = recorder.seconds if version == steps else trainer.idle_since - recording.start
                if not version:
                    raise RunError(
                        f"not one step can be trained under these settings; lost: {dict(controller.audit.lost)}. "
                        "Replay with a bound and rules that are nearer to the recorded ones"
                    )
                await models.copy(version)
                after = await _accuracy(recipe, origin, models.path(version), version)
                if after is not None:
                    recorder.evaluated(after)
    if version < steps:
        display.note(f"the recording had no batch left after {version} of {steps} steps")
    return Outcome(before, after, seconds, recorder, controller.audit), clock.now()


def _trainer(plan: Replay, origin: Origin, model: Path, publications: Path) -> PacedTrainer:
    """With steps of their own cost, or paced ones of no other."""
    recipe = plan.recipe
    if plan.paced:
        recipe = recipe.model_copy(update={"virtual": recipe.virtual.model_copy(update={"train_step": 0.0})})
    starting, logs = StartingVersions(str(model)), origin.directory / "logs"
    trainer = InProcessTrainer(recipe, starting, publications, logs, origin.plan.lags)
    return PacedTrainer(trainer, plan.recording.step_seconds if plan.paced else ())


def _controller(
    plan: Replay,
    engine: RecordedEngine,
    trainer: Trainer,
    groups: RecordedGroups,
    observer: Observer,
    checkpoints: SavedModels,
) -> Controller:
    """One that never waits in vain: what it waits for is recorded, and may be as far off as the recording is long."""
    recipe, rollout, recording = plan.recipe, plan.recipe.rollout, plan.recording
    limits = {name: getattr(recipe.deadlines, name) + plan.patience for name in ("step", "swap")}
    admission: RecordedGate
    rules: dict[str, object]
    if plan.as_recorded:
        rules = {"late": "wait", "max_groups": None}  # what was dropped as late is recorded as lost
        keep = keep_all
        admission = RecordedSchedule(recording.groups, recording.loaded, rollout.problems_per_step)
    else:
        assert rollout.staleness is not None, "refused: a run with an exact lag keeps its rules"
        rules = {"max_requeues": 0}  # nothing can be generated again
        keep = keep_all if rollout.filter is None else import_function(rollout.filter, "rollout.filter")
        admission = RecordedGate(recording.groups, rollout.problems_per_step, rollout.staleness)
    return Controller(
        Segment(
            rollout=rollout.model_copy(update=rules),
            deadlines=recipe.deadlines.model_copy(update=limits),
            steps=len(recording.step_seconds),
            until=recipe.train.steps,
            engine=engine,
            trainer=trainer,
            admission=admission,
            problems=RecordedOrder(recording.groups),
            groups=groups,
            keep=keep,
            lease=SharedDeviceLease(engine) if recipe.mode == "collocated" else NoLease(),
            observer=observer,
            checkpoints=checkpoints,
        )
    )


async def _accuracy(recipe: Recipe, origin: Origin, model: Path, version: int) -> Accuracy | None:
    """Of `model` as `version`, on engines that really generate."""
    if not origin.plan.held_out:
        return None
    rewards = InlineRewards(import_function(reward_name(recipe), "reward.function"))
    async with reported_failures(), open_engines(recipe, StartingVersions(str(model), version)) as engine:
        episodes = held_out_episodes(recipe, origin.plan, engine, load_codec(str(model)), rewards)
        async with deadline(recipe.deadlines.step, "controller", f"the evaluation of version {version}"):
            return await evaluate(episodes, origin.plan.held_out, f"eval{version}")
