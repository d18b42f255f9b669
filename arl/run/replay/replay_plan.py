"""Plan a replay, and refuse whatever a recording cannot give, before anything starts.

RUN/recipe.yaml + --set ─► what differs ─► refused, or free, or a change of the schedule ─► Replay
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from arl.config.recipe import Recipe, Sync
from arl.config.recipe_file import differences, load_recipe
from arl.errors import InputError, RecipeError
from arl.metrics.run_files import RECIPE, SUMMARY
from arl.metrics.run_status import require_run
from arl.run.replay.recording import Recording, read_recording

# Fields that a replay may change without a change of the schedule: each step trains what it trained.
FREE = (
    "name",
    "advantage.",
    "objective.",
    "train.",
    "eval.",
    "output.",
    "deadlines.",
    "rollout.max_rejected_share",
)
# Fields that change the schedule.
RULES = (
    "rollout.staleness",
    "rollout.late",
    "rollout.filter",
    "rollout.max_groups",
)
COSTS = (
    "virtual.train_step",
    "virtual.trained_token",
    "virtual.snapshot",
    "virtual.publish",
    "virtual.load",
)
# Fields that no replay may change, because it computes in one process with one thread.
FIXED = ("train.ranks", "train.threads")


class Replay(Struct, frozen=True):
    """Describe a replay that can be done."""

    recipe: Recipe  # as the virtual world runs it
    recording: Recording
    as_recorded: bool  # no rule and no cost differs, so each step trains what it trained
    paced: bool  # steps take their recorded seconds instead of their costs

    @property
    def patience(self) -> float:
        """Return the seconds after which all recorded groups have arrived, and all trained versions are loaded."""
        costs = self.recipe.virtual
        return self.recording.seconds + costs.publish + costs.load + 1.0


def plan_replay(run: Path, overrides: Sequence[str]) -> Replay:
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
    paced = not recorded.world_traits.virtual_time
    _refuse(changed, _allowed(recorded, paced))
    recording = read_recording(run, recorded)
    steps = len(recording.step_seconds)
    if wanted.train.steps > steps:
        raise InputError(f"train.steps {wanted.train.steps}: {run} recorded {steps}; replay with at most as many")
    if wanted.name == recorded.name:
        wanted = wanted.model_copy(update={"name": f"{recorded.name}-replay"})
    if wanted.eval != recorded.eval:
        recording = msgspec.structs.replace(recording, before=None)
    as_recorded = all(field.startswith(FREE) for field, _, _ in changed)
    return Replay(
        recipe=_in_one_process(wanted, recording),
        recording=recording,
        as_recorded=as_recorded,
        paced=paced,
    )


def _allowed(recorded: Recipe, paced: bool) -> tuple[str, ...]:
    """Return the beginnings of the fields that a replay may change."""
    if recorded.rollout.lag is not None:
        return FREE
    if paced:
        return FREE + RULES
    return FREE + RULES + COSTS


def _refuse(changed: Sequence[tuple[str, Any, Any]], allowed: tuple[str, ...]) -> None:
    for field, in_recording, wanted in changed:
        if field in FIXED or not field.startswith(allowed):
            names = ", ".join(f"{name}*" if name.endswith(".") else name for name in allowed)
            raise RecipeError(
                f"{field} = {wanted!r}: the run was recorded with {in_recording!r}, and a recording cannot be changed; "
                f"a replay may change {names}, but not {', '.join(FIXED)}"
            )


def _in_one_process(recipe: Recipe, recording: Recording) -> Recipe:
    """Move the recipe to one process, one rank and one thread. A run without costs gets its own mean times as costs."""
    alone: dict[str, object] = {
        "world": "virtual",
        "train": recipe.train.model_copy(update={"ranks": 1, "threads": None}),
        "engine": recipe.engine.model_copy(update={"threads": None}),
        "sync": Sync(),
    }
    if not recipe.world_traits.virtual_time:
        seconds = recording.step_seconds
        costs = {
            "train_step": sum(seconds) / len(seconds),
            "trained_token": 0.0,
            "snapshot": 0.0,
            "publish": recording.publish_seconds,
            "load": recording.load_seconds,
        }
        alone["virtual"] = recipe.virtual.model_copy(update=costs)
    return recipe.model_copy(update=alone)
