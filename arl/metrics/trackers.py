"""Choose the trackers of a run.

    output.wandb: online            ─► WandbTracker       ─┐
    output.trackers: [tensorboard]  ─► TensorboardTracker ─┼─► TrackerThread each ─► tracker.log(record)
    output.trackers: [module:name]  ─► user's own         ─┘

metrics.jsonl is always written and is the truth. A tracker never ends or delays a run: each one lives in a thread of
its own, and one that raises or hangs is dropped with one line (arl/metrics/tracker_thread.py).
"""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from arl.config.imports import check_seam, import_seam
from arl.config.recipe import Recipe
from arl.errors import RecipeError
from arl.metrics.base import SampleTracker, TrackedRun, Tracker, TrackerFactory, TrackerMaker
from arl.metrics.run_files import SWEEP_MANIFEST
from arl.metrics.run_labels import redacted
from arl.metrics.tensorboard_tracker import require_tensorboard
from arl.metrics.tracker_thread import takes_samples
from arl.metrics.wandb_tracker import WandbTracker, refuse_without_key

EXAMPLE = "arl.metrics.wandb_tracker:WandbTracker"
BUILT_IN = {"tensorboard": "arl.metrics.tensorboard_tracker:TensorboardTracker"}


def check_trackers(recipe: Recipe) -> None:
    """Refuse a tracker that cannot work.

    Raises:
        InputError: online tracking without an API key.
        RecipeError: `output.trackers` names something that is not installed, does not import, or is no tracker.
    """
    if recipe.output.wandb == "online":
        refuse_without_key()
    for name in recipe.output.trackers:
        _import_tracker(name)


def make_trackers(recipe: Recipe, directory: Path, note: Callable[[str], None]) -> list[TrackerMaker]:
    """List the trackers that the recipe asks for; none of them has started.

    Args:
        directory: of the run.
        note: shows one line to the user.
    """
    run = TrackedRun(
        name=_name(directory),
        directory=directory,
        config=redacted(recipe.model_dump(mode="json")),
        note=note,
    )
    factories = {name: _import_tracker(name) for name in recipe.output.trackers}
    if recipe.output.wandb != "off":
        factories["wandb"] = WandbTracker
    return [_maker(name, factory, run) for name, factory in factories.items()]


def _name(directory: Path) -> str:
    """Name a run by its directory. All arms of a sweep have a seed-0, so there the arm's directory comes first."""
    arm = directory.absolute().parent
    is_of_sweep = os.path.exists(arm.parent / SWEEP_MANIFEST)
    return f"{arm.name}/{directory.name}" if is_of_sweep else directory.name


def _maker(name: str, factory: TrackerFactory, run: TrackedRun) -> TrackerMaker:
    return TrackerMaker(name, lambda past: factory(msgspec.structs.replace(run, past=past)))


def _import_tracker(name: str) -> TrackerFactory:
    """Import a class or a function that makes a tracker; of a class, check the methods as well."""
    if name == "wandb":
        raise RecipeError("output.trackers 'wandb': it is built in; set output.wandb to online or offline instead")
    if name == "tensorboard":
        require_tensorboard()
    factory: TrackerFactory = import_seam(name, "output.trackers", TrackerFactory, EXAMPLE, BUILT_IN)
    if isinstance(factory, type):
        seam = SampleTracker if takes_samples(factory) else Tracker
        check_seam(factory, f"output.trackers {name!r}", seam, EXAMPLE)
    return factory
