"""Choose the trackers of a run, and run each in a thread of its own, so that it can neither end nor delay the run.

    output.wandb: online            ─► WandbTracker       ─┐
    output.trackers: [tensorboard]  ─► TensorboardTracker ─┼─► TrackerThread each: a queue ─► tracker.log(record)
    output.trackers: [module:name]  ─► user's own         ─┘

metrics.jsonl is always written and is the truth. A tracker that raises is dropped with one line. So is one that does
not finish within CLOSE_SECONDS at the end. Threads are daemons: one that hangs does not keep the process from exiting.
"""

import importlib.util
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from arl.config.imports import check_seam, import_seam
from arl.config.recipe import Recipe
from arl.errors import RecipeError
from arl.metrics.base import SampleTracker, TrackedRun, Tracker, TrackerFactory
from arl.metrics.names import Record
from arl.metrics.run_files import SWEEP_MANIFEST
from arl.metrics.sampled_episode import SampledEpisode
from arl.metrics.wandb_tracker import NEWEST, WandbTracker, redacted, require_key, sync_command

EXAMPLE = "arl.metrics.wandb_tracker:WandbTracker"
BUILT_IN = {"tensorboard": "arl.metrics.tensorboard_tracker:TensorboardTracker"}
CLOSE_SECONDS = 30.0  # at the end, for a start that is still tried, all that is left to log, and for `close`
MAX_CALLS = 1_000  # that wait for a tracker; one that hangs must not fill the memory


def check_trackers(recipe: Recipe) -> None:
    """Refuse a tracker that cannot work.

    Raises:
        InputError: online tracking without an API key.
        RecipeError: `output.trackers` names something that is not installed, does not import, or is no tracker.
    """
    if recipe.output.wandb == "online":
        require_key()
    for name in recipe.output.trackers:
        _import_tracker(name)


def make_trackers(recipe: Recipe, directory: Path, note: Callable[[str], None]) -> list["TrackerThread"]:
    """List the trackers that the recipe asks for; none of them has started.

    Args:
        directory: of the run.
        note: shows one line to the user.
    """
    arm = directory.absolute().parent
    is_of_sweep = (arm.parent / SWEEP_MANIFEST).exists()
    run = TrackedRun(
        name=f"{arm.name}/{directory.name}" if is_of_sweep else directory.name,  # all arms of a sweep have a seed-0
        directory=directory,
        config=redacted(recipe.model_dump(mode="json")),
        note=note,
    )
    factories = {name: _import_tracker(name) for name in recipe.output.trackers}
    if recipe.output.wandb != "off":
        factories["wandb"] = WandbTracker
    return [TrackerThread(name, factory, run) for name, factory in factories.items()]


def _import_tracker(name: str) -> TrackerFactory:
    """Import a class or a function that makes a tracker; of a class, check the methods as well."""
    if name == "wandb":
        raise RecipeError("output.trackers 'wandb': it is built in; set output.wandb to online or offline instead")
    if name == "tensorboard" and importlib.util.find_spec(name) is None:
        raise RecipeError(
            "output.trackers 'tensorboard': the package is not installed; run "
            "`pip install -e '.[tensorboard]'` in arl's source directory, or leave it out"
        )
    factory: TrackerFactory = import_seam(name, "output.trackers", TrackerFactory, EXAMPLE, BUILT_IN)
    if isinstance(factory, type):
        seam = SampleTracker if hasattr(factory, "log_samples") else Tracker
        check_seam(factory, f"output.trackers {name!r}", seam, EXAMPLE)
    return factory


class TrackerThread:
    """Log to one tracker without ever blocking or raising. It is made, used and closed in the thread."""

    def __init__(self, name: str, factory: TrackerFactory, run: TrackedRun) -> None:
        self._name = name
        self._factory = factory
        self._run = run
        self._calls: queue.Queue[tuple[Any, ...]] = queue.Queue(MAX_CALLS)  # a method's name and arguments
        self._dropped = threading.Event()
        self._thread = threading.Thread(target=self._make_calls, name=f"tracker {name}", daemon=True)

    def start(self, past: Sequence[Record] = ()) -> None:
        """Start the thread, which makes the tracker; `past` are the records that the file of a resumed run keeps."""
        self._run = structs.replace(self._run, past=past)
        self._thread.start()

    def log(self, record: Record) -> None:
        """Queue a record."""
        self._put("log", dict(record))

    def log_samples(self, step: int, samples: Sequence[SampledEpisode]) -> None:
        """Queue episodes, for a tracker that takes them."""
        self._put("log_samples", step, samples)

    def close(self) -> None:
        """Let the tracker finish, within its deadline."""
        self._put("close")
        if not self._dropped.is_set():
            self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self._drop(f"it did not finish within {CLOSE_SECONDS:g} s after the end of the run")

    def _put(self, *call: Any) -> None:
        if self._dropped.is_set():
            return
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            self._drop(f"it hangs, and {MAX_CALLS} calls wait for it")

    def _make_calls(self) -> None:
        """Make the calls of the tracker, until the run ends or the tracker fails.

        Consumes calls; waits for the queue; unblocked by `log`, `log_samples` and `close`.
        """
        try:
            tracker = self._factory(self._run)
            self._run = structs.replace(self._run, past=())  # the records of a long run take gigabytes
            method = ""
            while method != "close" and not self._dropped.is_set():
                method, *arguments = self._calls.get()
                if method != "log_samples" or hasattr(tracker, method):
                    getattr(tracker, method)(*arguments)
        except BaseException as error:  # a user's code or a service may fail in any way, and even call sys.exit
            self._drop(f"{type(error).__name__}: {error}")

    def _drop(self, why: str) -> None:
        """Log no more to it, and say so once."""
        if not self._dropped.is_set():
            self._dropped.set()
            self._run.note(f"tracker {self._name} is dropped, and the run goes on without it: {why}{self._remedy()}")

    def _remedy(self) -> str:
        """Say how to upload what wandb has on the disk."""
        is_kept = self._name == "wandb" and (self._run.directory / NEWEST).exists()
        return f"; upload what it has with {sync_command(self._run.directory)}" if is_kept else ""
