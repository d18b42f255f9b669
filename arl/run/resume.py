"""Where a run begins: in a directory of its own, or where its last intact checkpoint left it.

recipe ─► preflight ─► Origin: a new directory                            everything that can be refused is refused
                       Origin: the old directory, checkpoint and state    before anything is started or written
"""

import contextlib
import fcntl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from arl.config.recipe import Recipe
from arl.config.recipe_file import differences, dump_recipe
from arl.errors import DataError, InputError
from arl.metrics.console import ConsoleDisplay
from arl.run.checkpoint import RunState, clear_after, newest_intact, older_versions
from arl.run.preflight import Plan, preflight
from arl.types import StartingVersions

# What a resumed run may do differently: nothing of it changes what is computed.
FREE = (
    *("deadlines.", "output.wandb", "output.directory", "engine.threads", "engine.python", "train.threads"),
    *("rollout.failure_window", "rollout.max_failed_share", "rollout.reject_window", "rollout.max_rejected_share"),
    *("output.trackers", "engine.max_restarts", "sync."),
)
RECIPE, LOCK = "recipe.yaml", "run.lock"
# In virtual time they change the schedule.
FREE_ON_THE_WALL = (
    *("engine.replicas", "engine.slots", "engine.tensor_parallel", "engine.args", "output.checkpoint_every"),
    *("train.ranks", "train.shard_ranks", "train.reshard", "train.checkpointing", "train.compile"),
)


@dataclass(frozen=True)
class Origin:
    plan: Plan
    directory: Path
    checkpoint: Path | None = None  # with its `state`: a resumed run
    state: RunState | None = None

    @property
    def version(self) -> int:
        return self.state.controller.version if self.state else 0

    def versions(self, model: Path) -> StartingVersions:
        """What trainer and engines begin with, `model` being the trainer's."""
        return StartingVersions(str(model), self.version, self._older())

    def _older(self) -> dict[int, str]:
        if self.checkpoint is None or self.state is None:
            return {}
        return older_versions(self.checkpoint, self.state.controller.loaded_version)

    @property
    def time(self) -> float:
        """Clock seconds at which it goes on."""
        return self.state.time if self.state else 0.0


@contextlib.contextmanager
def begin(recipe: Recipe, display: ConsoleDisplay, resume: Path | None) -> Iterator[Origin]:
    """A new run directory, or with `resume`, the recipe's file, the newest of its runs.

    Raises:
        InputError: whatever can be known to fail; nothing is changed by then.
    """
    plan = preflight(recipe)
    directory = new_run_directory(recipe) if resume is None else _run_to_resume(recipe, resume)
    with _locked(directory):
        if resume is not None:
            yield _resumed(recipe, plan, directory, display)
            return
        (directory / RECIPE).write_text(dump_recipe(recipe))
        display.note(f"run directory {directory}; weights travel by {plan.transport}")
        yield Origin(plan, directory)


def new_run_directory(recipe: Recipe) -> Path:
    """<directory>/<name>, or the first of <name>-2, <name>-3… that does not exist: a run never overwrites another."""
    for directory in _names(recipe):
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise InputError(f"output.directory {directory.parent}: cannot be written ({error.strerror})") from error
        return directory
    raise AssertionError("names never end")


def _names(recipe: Recipe) -> Iterator[Path]:
    first, number = recipe.run_directory, 1
    yield first
    while True:
        number += 1
        yield first.with_name(f"{first.name}-{number}")


def _run_to_resume(recipe: Recipe, file: Path) -> Path:
    """The directory that the recipe's file lies in, if that is a run; else the newest run of this name."""
    if file.name == RECIPE and (file.parent / LOCK).exists():
        return file.parent
    first = recipe.run_directory
    numbers = {path: path.name.removeprefix(f"{first.name}-") for path in first.parent.glob(f"{first.name}-*")}
    runs = {path: int(number) for path, number in numbers.items() if number.isdecimal()} | {first: 1}
    found = [path for path in sorted(runs, key=lambda path: runs[path]) if (path / LOCK).exists()]
    if not found:
        raise InputError(f"--resume: there is no run {first}; start it without --resume")
    return found[-1]


def _resumed(recipe: Recipe, plan: Plan, directory: Path, display: ConsoleDisplay) -> Origin:
    if (directory / "summary.json").exists():
        raise InputError(f"--resume: {directory} is finished; see its summary.json, or start a new run")
    checkpoint, state = newest_intact(directory / "checkpoints", display.note)
    _same_run(recipe, plan, state, checkpoint)
    clear_after(checkpoint)
    display.note(f"resuming {directory} from {checkpoint.name}; what its files hold past that is removed")
    return Origin(plan, directory, checkpoint, state)


def _same_run(recipe: Recipe, plan: Plan, state: RunState, checkpoint: Path) -> None:
    """Refuse a checkpoint of another model, world or anything else that decides what is computed."""
    free = FREE if recipe.world == "virtual" else FREE + FREE_ON_THE_WALL
    for field, a, b in differences(state.recipe, recipe.model_dump(mode="json")):
        if not field.startswith(free):
            raise InputError(
                f"{field} = {b!r}: {checkpoint} was made with {a!r}; resume with that, or start a new run without "
                "--resume"
            )
    if plan.sha256() != state.inputs:
        raise DataError(f"{checkpoint}: was made with other problems or lags than the recipe's files now hold")


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Raises InputError: another process runs in this directory."""
    with (directory / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # let go of when this process ends, however it ends
        except BlockingIOError as error:
            raise InputError(f"--resume: {directory} is still running; wait for it, or end it") from error
        yield
