"""Choose the trackers of a run.

    output.wandb: online            ─► WandbTracker ─┐
    output.trackers: [module:name]  ─► user's own   ─┴─► TrackerThread each ─► tracker.log(record)

metrics.jsonl is always written and is the truth. A tracker never ends or delays a run: each one lives in a thread of
its own, and one that raises or hangs is dropped with one line (arl/metrics/tracker_thread.py).
"""

import inspect
from collections.abc import Callable
from pathlib import Path

from arl.config.imports import import_function
from arl.config.recipe import Recipe
from arl.errors import RecipeError
from arl.metrics.base import TrackedRun, Tracker, TrackerMaker
from arl.metrics.wandb_tracker import WandbTracker, refuse_without_key

EXAMPLE = "arl.metrics.wandb_tracker:WandbTracker is an example"


def check_trackers(recipe: Recipe) -> None:
    """Refuse a tracker that cannot work.

    Raises:
        InputError: online tracking without an API key.
        RecipeError: `output.trackers` names something that does not import, or is no tracker.
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
        name=directory.name,
        directory=directory,
        config=recipe.model_dump(mode="json"),
        note=note,
    )
    makers = [_maker(name, _import_tracker(name), run) for name in recipe.output.trackers]
    if recipe.output.wandb != "off":
        makers.append(TrackerMaker("wandb", lambda: WandbTracker(run)))
    return makers


def _maker(name: str, factory: Callable[[TrackedRun], Tracker], run: TrackedRun) -> TrackerMaker:
    return TrackerMaker(name, lambda: factory(run))


def _import_tracker(name: str) -> Callable[[TrackedRun], Tracker]:
    if name == "wandb":
        raise RecipeError("output.trackers 'wandb': it is built in; set output.wandb to online or offline instead")
    factory = import_function(name, "output.trackers")
    try:
        inspect.signature(factory).bind(None)
    except (TypeError, ValueError) as error:
        raise RecipeError(
            f"output.trackers {name!r}: cannot be called with the run alone ({error}); take one argument, a "
            f"TrackedRun; {EXAMPLE}"
        ) from error
    if inspect.isclass(factory):
        _refuse_incomplete(name, factory)
    return factory


def _refuse_incomplete(name: str, tracker: type) -> None:
    for method, example in (("log", "log(record)"), ("close", "close()")):
        function = getattr(tracker, method, None)
        if not callable(function):
            raise RecipeError(f"output.trackers {name!r}: has no method {example}; add it; {EXAMPLE}")
        arguments = (None, None) if method == "log" else (None,)  # self, and the record
        try:
            inspect.signature(function).bind(*arguments)
        except TypeError as error:
            raise RecipeError(
                f"output.trackers {name!r}: its {method} must be callable as {example} ({error}); {EXAMPLE}"
            ) from error
