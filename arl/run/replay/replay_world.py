"""Train again from a recording: groups, engine and schedule are recorded, the trainer really trains, in virtual time.

    RUN/recipe.yaml + --set ─► what differs ─► refused, or free, or a change of the schedule
    ReplayWorld ─► arl.run.train: the same assembly as of any other run
                  │
                  ├ RecordedOrder, RecordedGroups, RecordedEngine   in the place of generation
                  ├ RecordedSchedule or RecordedGate                in the place of admission
                  └ InProcessTrainer                                trains

Only evaluations generate, on engines that are opened for them.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from arl import clock
from arl.config.recipe import VIRTUAL, Recipe, Sync
from arl.config.recipe_file import differences, load_recipe
from arl.data.tokenizer import load_codec
from arl.errors import InputError, RecipeError
from arl.metrics.console import ConsoleDisplay
from arl.metrics.run_files import RECIPE, SUMMARY
from arl.metrics.run_status import require_run
from arl.metrics.summary import Summary
from arl.rollout.controller_state import ControllerState
from arl.rollout.filters import keep_all
from arl.run.checkpoint import next_checkpoint
from arl.run.evaluation.scoreboard import CHECKPOINTS
from arl.run.evaluation.suite import held_out_suites
from arl.run.replay.recorded import (
    PacedTrainer,
    RecordedEngine,
    RecordedGate,
    RecordedGroups,
    RecordedOrder,
    RecordedSchedule,
)
from arl.run.replay.recording import Recording, read_recording
from arl.run.train import train
from arl.run.virtual import evaluations_in_place, measure_in_process, repeatable
from arl.run.world import Parts, RunContext, recipe_filter, recipe_lease
from arl.sync.publication_directory import publication_directory
from arl.train.base import Trainer
from arl.types import Accuracy, Problem, StartingVersions

# Fields that a replay may change without a change of the schedule: each step trains what it trained.
FREE = ("name", "advantage.", "objective.", "train.", "eval.", "output.", "deadlines.", "rollout.max_rejected_share")
# Fields that change the schedule.
RULES = ("rollout.staleness", "rollout.late", "rollout.filter", "rollout.max_groups")
# Fields that change nothing of the weights.
ASIDE = ("name", "output.", "eval.", "deadlines.", "train.steps")
# Fields that no replay may change, because it computes in one process with one thread.
FIXED = ("train.ranks", "train.threads")


def replay(run: Path, overrides: Sequence[str], display: ConsoleDisplay) -> tuple[Summary, Recipe]:
    """Train again from what the finished run in directory `run` recorded, with some settings changed.

    Raises:
        InputError: the run cannot be replayed, or not with these settings; nothing was written.
        RunError: not even one step can be trained.
    """
    world = plan_replay(run, overrides)
    return train(world.recipe, display, world=world), world.recipe


def plan_replay(run: Path, overrides: Sequence[str]) -> "ReplayWorld":
    """Plan a replay of the finished run in directory `run`, with some settings changed.

    Raises:
        InputError: the run cannot be replayed, or not with these settings.
    """
    require_run(run)
    if not os.path.exists(run / SUMMARY):
        raise InputError(f"{run}: no {SUMMARY}, so no finished run; give the directory of one, or let this one end")
    file = run / RECIPE
    recorded = load_recipe(file)
    wanted = load_recipe(file, overrides)
    changed = list(differences(recorded.model_dump(mode="json"), wanted.model_dump(mode="json")))
    allowed = FREE if recorded.rollout.lag is not None else FREE + RULES
    for field, in_recording, value in changed:
        if field in FIXED or not field.startswith(allowed):
            names = ", ".join(f"{name}*" if name.endswith(".") else name for name in allowed)
            raise RecipeError(
                f"{field} = {value!r}: the run was recorded with {in_recording!r}, and a recording cannot be changed; "
                f"a replay may change {names}, but not {', '.join(FIXED)}"
            )
    changes_weights = any(not field.startswith(ASIDE) for field, _, _ in changed)
    if changes_weights and wanted.needs_sampling_versions:
        raise RecipeError(
            "objective.proximal sampled, or train.ratio_parts_every: a replay with other settings has other versions "
            f"than those that sampled the tokens of {run}; choose recompute, or 0"
        )
    objective = wanted.objective
    if wanted.num_teachers > 1:
        raise RecipeError("objective.teacher.path: a recording has no scores of teachers, and one process holds one")
    if objective.teacher is not None:
        objective = objective.model_copy(update={"teacher": objective.teacher.model_copy(update={"place": "trainer"})})
    recording = read_recording(run, recorded)
    steps = len(recording.step_seconds)
    if wanted.train.steps > steps:
        raise InputError(f"train.steps {wanted.train.steps}: {run} recorded {steps}; replay with at most as many")
    # One process, one rank and one thread, where nothing costs time but what is recorded.
    free = dict.fromkeys(("train_step", "trained_token", "snapshot", "publish", "load"), 0.0)
    alone: dict[str, object] = {
        "name": f"{wanted.name}-replay" if wanted.name == recorded.name else wanted.name,
        "world": "virtual",
        "objective": objective,
        "train": wanted.train.model_copy(update={"ranks": 1, "threads": None}),
        "engine": wanted.engine.model_copy(update={"threads": None}),
        "sync": Sync(),
        "virtual": wanted.virtual.model_copy(update=free),
    }
    as_recorded = all(field.startswith(FREE) for field, _, _ in changed)
    return ReplayWorld(wanted.model_copy(update=alone), recording, as_recorded)


class ReplayWorld:
    """Implement World: a recording in the place of generation.

    Args:
        recipe: as the virtual world runs it.
        as_recorded: no rule differs, so each step trains what it trained.
    """

    def __init__(self, recipe: Recipe, recording: Recording, as_recorded: bool) -> None:
        self.recipe = recipe
        self.traits = replace(VIRTUAL, restarts_at_checkpoints=False, start_time=recording.start)
        self._recording = recording
        self._as_recorded = as_recorded

    def process_settings(self) -> AbstractContextManager[None]:
        """See World."""
        return repeatable()

    def known_accuracy(self, context: RunContext) -> Sequence[Accuracy]:
        """See World. Not measured on the clock of the recording, because that would shift the schedule."""
        if not context.plan.held_out:
            return ()
        return clock.run(lambda: _measure(context, context.model, version=0), virtual=True)

    @contextlib.asynccontextmanager
    async def open(self, context: RunContext) -> AsyncIterator[Parts]:
        """See World."""
        recording = self._recording
        recipe = context.recipe
        plan = context.plan
        model = context.model
        with publication_directory(recipe, model, context.directory, plan.lags, plan.transport) as publications:
            versions = StartingVersions(str(model), base=str(model))
            trainer = PacedTrainer(recording.step_seconds, recipe, versions, publications, plan.lags)
            engine = RecordedEngine(recording.loaded)
            models = SavedModels(context.directory / CHECKPOINTS, recipe, trainer)

            async def measure(problems: Sequence[Problem], version: int) -> Sequence[Accuracy]:
                return await _measure(context, models.path(version), version)

            deadlines = recipe.deadlines
            # What the controller waits for may be as far off as the recording is long.
            longer = {"step": deadlines.step + recording.timeout, "swap": deadlines.swap + recording.timeout}
            codec = load_codec(str(model), recipe.data)
            bound = None if self._as_recorded else recipe.rollout.max_age
            groups = RecordedGroups(recording.groups, engine, codec, trainer, recording.timeout, bound)
            yield Parts(
                engine=engine,
                trainer=trainer,
                groups=groups,
                problems=RecordedOrder([recorded.group.problem for recorded in recording.groups]),
                lease=recipe_lease(recipe, engine, groups.drain),
                gate_meter=groups.gate_meter,
                drain=None if recipe.sync.interrupt else groups.drain,
                tokens=recipe.train.tokens,
                deadlines=deadlines.model_copy(update=longer),
                steps=len(recording.step_seconds),
                display=QuietDisplay(context.display),
                checkpoints=models,  # alone; evaluations save their own
                make_evaluations=evaluations_in_place(context, trainer.save_model),
                evaluate=measure,
                codec=codec,
                **self._rules(),
            )

    def _rules(self) -> dict[str, Any]:
        """Return what decides the batches: the recorded schedule, or the recipe's rules over the recorded groups."""
        groups = self._recording.groups
        rollout = self.recipe.rollout
        if self._as_recorded:
            return {
                "admission": RecordedSchedule(groups, self._recording.loaded, rollout.problems_per_step),
                "keep": keep_all,
                # Groups that were dropped as late are recorded as lost.
                "rollout": rollout.model_copy(update={"late": "wait", "max_groups": None}),
            }
        assert rollout.lag is None, "refused: a run with an exact lag keeps its rules"
        return {
            "admission": RecordedGate(groups, rollout.problems_per_step, rollout.max_age),
            "keep": recipe_filter(self.recipe),
            # A group that was dropped cannot be generated again.
            "rollout": rollout.model_copy(update={"max_requeues": 0}),
        }


class SavedModels:
    """Implement Checkpoints: save models as `output.checkpoint_every` says. A replay is repeated, never resumed."""

    def __init__(self, directory: Path, recipe: Recipe, trainer: Trainer) -> None:
        self._directory = directory
        self._recipe = recipe
        self._trainer = trainer
        directory.mkdir()

    def path(self, version: int) -> Path:
        """Return the directory of one version."""
        return self._directory / f"step_{version}"

    def due(self, version: int) -> bool:
        """See Checkpoints."""
        return version == next_checkpoint(self._recipe, version - 1)

    async def copy(self, version: int) -> None:
        """See Checkpoints. Does nothing for a version that is saved already."""
        if not os.path.exists(self.path(version)):  # noqa: ASYNC240 - a local directory
            await self._trainer.save(self.path(version))

    async def write(self, state: ControllerState) -> None:
        """See Checkpoints."""
        del state
        await self._trainer.saved()

    async def prune(self) -> None:
        """See Checkpoints. All models are kept."""


class QuietDisplay:
    """Implement Display without lost groups, because hundreds may be lost, and the summary counts them."""

    def __init__(self, display: ConsoleDisplay) -> None:
        self.step = display.step
        self.note = display.note

    def lost(self, text: str) -> None:
        """Show nothing."""


async def _measure(context: RunContext, model: Path, version: int) -> Sequence[Accuracy]:
    """Measure the accuracy of `model`, which is `version`, on held-out problems, on engines that really generate."""
    suites = held_out_suites(context.recipe, context.plan.held_out)
    return await measure_in_process(context, suites, model, version)
