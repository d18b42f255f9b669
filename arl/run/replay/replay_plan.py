"""Which replay is asked for, and whether it can be: everything that can be refused is refused here.

RUN/recipe.yaml + --set ─► what differs ─► refused, or free, or a change of the schedule ─► Replay
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from arl.config.recipe import Recipe, Sync
from arl.config.recipe_file import differences, load_recipe
from arl.errors import InputError, RecipeError
from arl.run.replay.recording import Recording, read_recording

FREE = ("name", "objective.", "advantage.", "train.", "eval.", "output.", "deadlines.", "rollout.max_rejects")
# What changes the schedule.
RULES = ("rollout.staleness", "rollout.late", "rollout.filter", "rollout.max_groups")
COSTS = tuple(f"virtual.{name}" for name in ("train_step", "trained_token", "snapshot", "publish", "load"))
FIXED = ("train.ranks", "train.threads")  # one process, one thread


class Replay(Struct, frozen=True):
    """What is to be done."""

    recipe: Recipe  # as the virtual world runs it
    recording: Recording
    as_recorded: bool  # no rule and no cost differs: each step trains what it trained
    paced: bool  # steps take their recorded seconds, not their costs

    @property
    def patience(self) -> float:
        """Seconds after which all that was recorded has arrived, and all that was trained is loaded."""
        return self.recording.seconds + self.recipe.virtual.publish + self.recipe.virtual.load + 1.0


def plan_replay(run: Path, overrides: Sequence[str]) -> Replay:
    """Of the finished run in directory `run`, with some settings changed.

    Raises:
        InputError: the run cannot be replayed, or not with these settings.
    """
    if not (run / "summary.json").exists():
        raise InputError(f"{run}: no summary.json, so no finished run; give the directory of one, or let this one end")
    file = run / "recipe.yaml"
    recorded, wanted = load_recipe(file), load_recipe(file, overrides)
    changed = list(differences(recorded.model_dump(mode="json"), wanted.model_dump(mode="json")))
    on_the_wall = recorded.world == "wall"
    costs = () if on_the_wall else COSTS
    _refuse(changed, FREE + (() if recorded.rollout.lag is not None else RULES + costs))
    recording = read_recording(run, recorded)
    steps = len(recording.step_seconds)
    if wanted.train.steps > steps:
        raise InputError(f"train.steps {wanted.train.steps}: {run} recorded {steps}; replay with at most so many")
    if wanted.name == recorded.name:
        wanted = wanted.model_copy(update={"name": f"{recorded.name}-replay"})
    if wanted.eval != recorded.eval:
        recording = msgspec.structs.replace(recording, before=None)
    as_recorded = all(field.startswith(FREE) for field, _, _ in changed)
    return Replay(_in_one_process(wanted, recording), recording, as_recorded, on_the_wall)


def _refuse(changed: Sequence[tuple[str, Any, Any]], allowed: tuple[str, ...]) -> None:
    for field, a, b in changed:
        if field in FIXED or not field.startswith(allowed):
            names = ", ".join(f"{name}*" if name.endswith(".") else name for name in allowed)
            raise RecipeError(
                f"{field} = {b!r}: the run was recorded with {a!r}, and a recording cannot be changed; a replay may "
                f"change {names}, but not {', '.join(FIXED)}"
            )


def _in_one_process(recipe: Recipe, recording: Recording) -> Recipe:
    """With one rank and thread; a run on the wall clock gets costs that are like its own times."""
    alone: dict[str, object] = {
        "world": "virtual",
        "train": recipe.train.model_copy(update={"ranks": 1, "threads": None}),
        "engine": recipe.engine.model_copy(update={"threads": None}),
        "sync": Sync(),
    }
    if recipe.world == "wall":
        seconds = recording.step_seconds
        costs = {"train_step": sum(seconds) / len(seconds), "trained_token": 0.0, "snapshot": 0.0}
        costs |= {"publish": recording.publish_seconds, "load": recording.load_seconds}
        alone["virtual"] = recipe.virtual.model_copy(update=costs)
    return recipe.model_copy(update=alone)
