"""Begin a run: in a new directory, or from the last intact checkpoint of an old one.

recipe ─► preflight ─► Origin: a new directory
                       Origin: the old directory, its checkpoint and state      (arl train --resume)

Everything that can be refused is refused here, before anything is started or written.
"""

import contextlib
import glob
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arl.config.recipe import Recipe, Train
from arl.config.recipe_file import differences, dump_recipe
from arl.errors import DataError, InputError
from arl.files import replace_file, require_lock, try_lock, writing
from arl.metrics.console import ConsoleDisplay
from arl.metrics.run_files import LOCK, RECIPE, SUMMARY
from arl.run.checkpoint_state import RunState, checkpoints_in, number_after, older_versions
from arl.run.evaluation.scoreboard import CHECKPOINTS
from arl.run.intact import clear_after, newest_intact
from arl.run.preflight import Plan, preflight
from arl.types import StartingVersions

# Fields that a resumed run may change, because they change nothing that is computed.
FREE = (
    "cluster.",
    "deadlines.",
    "engine.max_restarts",
    "engine.min_replicas",
    "engine.python",
    "engine.threads",
    "eval.every",
    "output.directory",
    "output.keep_checkpoints",
    "output.samples_every",
    "output.trackers",
    "output.wandb",
    "reward.memory_gb",
    "reward.on_error",
    "rollout.max_failed_share",
    "rollout.max_rejected_share",
    "sync.check",
    "sync.transport",
    "train.min_ranks",
    "train.threads",
)
# Fields that it may change on the wall clock alone, because in virtual time they change the schedule.
FREE_ON_THE_WALL = (
    "engine.args",
    "engine.replicas",
    "engine.slots",
    "engine.tensor_parallel",
    "launcher",
    "output.checkpoint_every",
    "reward.workers",
    "train.checkpointing",
    "train.compile",
    "train.ranks",
    "train.reshard",
    "train.shard_ranks",
)


@dataclass(frozen=True)
class Origin:
    """Say what a run begins with: a directory, and for a resumed run a checkpoint with its state."""

    plan: Plan
    directory: Path
    checkpoint: Path | None = None
    state: RunState | None = None

    @property
    def version(self) -> int:
        """Return the version that the trainer begins with."""
        return self.state.controller.version if self.state else 0

    def versions(self, model: Path) -> StartingVersions:
        """Return the versions that trainer and engines begin with; `model` is the trainer's."""
        return StartingVersions(str(model), self.version, self._older())

    def _older(self) -> dict[int, str]:
        if self.checkpoint is None or self.state is None:
            return {}
        return older_versions(self.checkpoint, self.state.controller.loaded_version)

    def is_done(self, train: Train) -> bool:
        """Return whether nothing is left to train."""
        tokens = self.state.controller.tokens_trained if self.state else 0
        return train.is_done(self.version, tokens)

    @property
    def time(self) -> float:
        """Return the clock seconds at which the run goes on."""
        return self.state.time if self.state else 0.0


@contextlib.contextmanager
def begin(recipe: Recipe, display: ConsoleDisplay, resume: Path | None) -> Iterator[Origin]:
    """Make a new run directory; with `resume`, the recipe's file, open the newest run of that recipe instead.

    Raises:
        InputError: something that is known to fail before the start; nothing is changed.
    """
    opened = _new_run(recipe, display) if resume is None else _old_run(recipe, display, resume)
    with opened as origin:
        yield origin


@contextlib.contextmanager
def _new_run(recipe: Recipe, display: ConsoleDisplay) -> Iterator[Origin]:
    """Make the directory of a new run."""
    plan = preflight(recipe)
    unfinished = _unfinished(recipe)
    directory = new_run_directory(recipe)
    with _locked(directory):
        _write_recipe(recipe, directory)
        display.note(f"run directory {directory}; weights travel by {plan.transport}")
        for note in plan.notes:
            display.note(note)
        if unfinished:
            display.note(f"an earlier run is not finished{_how_to_resume(unfinished)}")
        yield Origin(plan, directory)


@contextlib.contextmanager
def _old_run(recipe: Recipe, display: ConsoleDisplay, resume: Path) -> Iterator[Origin]:
    """Open the run that `resume` names."""
    directory = run_to_resume(recipe, resume)
    with _locked(directory):
        plan = preflight(recipe)
        yield _resumed(recipe, plan, directory, display)


def new_run_directory(recipe: Recipe) -> Path:
    """Make <directory>/<name>, or the first of <name>-2, <name>-3… that does not exist yet.

    A run never overwrites another.

    Raises:
        InputError: the directory cannot be written.
    """
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
    first = recipe.run_directory
    yield first
    for number in itertools.count(2):
        yield first.with_name(f"{first.name}-{number}")


def run_to_resume(recipe: Recipe, file: Path) -> Path:
    """Return the run in whose directory the recipe's file lies; otherwise the newest run of the recipe's name.

    Raises:
        InputError: there is no such run.
    """
    if file.name == RECIPE and _is_run(file.parent):
        return file.parent
    runs = _runs(recipe)
    if not runs:
        raise InputError(f"--resume: there is no run {recipe.run_directory}; start it without --resume")
    return runs[-1]


def _runs(recipe: Recipe) -> list[Path]:
    """Return the runs of the recipe's name, oldest first."""
    first = recipe.run_directory
    named = {1: first}
    for path in first.parent.glob(f"{glob.escape(first.name)}-*"):
        number = number_after(f"{first.name}-", path.name)
        if number is not None and number > 1:
            named[number] = path
    return [named[number] for number in sorted(named) if _is_run(named[number])]


def _is_run(directory: Path) -> bool:
    return (directory / LOCK).exists()


def _unfinished(recipe: Recipe) -> list[Path]:
    """Return those of the recipe's runs that have a checkpoint and no summary: killed, or still going on."""
    return [run for run in _runs(recipe) if checkpoints_in(run / CHECKPOINTS) and not (run / SUMMARY).exists()]


def _how_to_resume(unfinished: Sequence[Path]) -> str:
    """Say how to continue the newest unfinished run, if there is one."""
    if not unfinished:
        return ""
    return f"; `arl train {unfinished[-1]}/{RECIPE} --resume` continues {unfinished[-1]}"


def _resumed(recipe: Recipe, plan: Plan, directory: Path, display: ConsoleDisplay) -> Origin:
    """Find the checkpoint that the run goes on from. The summary of a finished run is kept as summary-step_N.json.

    Raises:
        InputError: there is none, it is another recipe's, or the run is finished and not extended; nothing is changed.
        DiskError: a file cannot be renamed or written.
    """
    checkpoint, state = newest_intact(directory / CHECKPOINTS, display.note)
    _refuse_other_run(recipe, plan, state, checkpoint)
    is_finished = (directory / SUMMARY).exists()
    if is_finished:
        _refuse_nothing_left(recipe, directory, state)
    # What follows changes files, and so whatever can be refused was refused above.
    with writing(directory):
        clear_after(checkpoint, display.note)
        if is_finished:
            (directory / SUMMARY).rename(directory / f"summary-step_{state.controller.version}.json")
    _write_recipe(recipe, directory)
    display.note(f"resuming {directory} from {checkpoint.name}; what its files hold past that is removed")
    return Origin(plan, directory, checkpoint, state)


def _write_recipe(recipe: Recipe, directory: Path) -> None:
    """Write or replace the recipe of a run.

    Raises:
        DiskError: it cannot be written; an older one stays.
    """
    file = directory / RECIPE
    with writing(file):
        replace_file(file, dump_recipe(recipe).encode())


def _refuse_nothing_left(recipe: Recipe, directory: Path, state: RunState) -> None:
    """Refuse a finished run that the recipe does not extend.

    Raises:
        InputError: the recipe has no steps or tokens beyond those that are done.
    """
    version = state.controller.version
    tokens = state.controller.tokens_trained
    if recipe.train.is_done(version, tokens):
        more = f"train.steps=N with N > {version}"
        if recipe.train.steps > version:
            more = f"train.tokens=N with N > {tokens}"
        raise InputError(
            f"--resume: {directory} is finished after {version} steps; see its {SUMMARY}, extend it by "
            f"--set {more}, or start a new run{_how_to_resume(_unfinished(recipe))}"
        )
    if recipe.rollout.lag is not None and recipe.train.tokens != state.recipe["train"]["tokens"]:
        raise InputError(
            f"train.tokens {recipe.train.tokens}: {directory} has ended, and with rollout.lag the groups that it had "
            "begun are of versions that no engine serves any more; start a new run"
        )


def _refuse_other_run(recipe: Recipe, plan: Plan, state: RunState, checkpoint: Path) -> None:
    """Check that the recipe computes what the checkpoint's run computed; `train.steps` and `train.tokens` may grow.

    Raises:
        InputError: a field that decides what is computed differs.
        DataError: problems or lags differ.
    """
    free = FREE if recipe.world_traits.restarts_at_checkpoints else FREE + FREE_ON_THE_WALL
    recorded_steps = state.recipe["train"]["steps"]
    for field, recorded, wanted in differences(state.recipe, recipe.model_dump(mode="json")):
        if not (_grows(field, recorded, wanted) or field.startswith(free)):
            raise InputError(
                f"{field} = {wanted!r}: {checkpoint} was made with {recorded!r}; resume with that, or start a new run "
                "without --resume"
            )
    if plan.sha256(recorded_steps) != state.inputs:
        raise DataError(f"{checkpoint}: was made with other problems or lags than the recipe's files now hold")


def _grows(field: str, recorded: Any, wanted: Any) -> bool:
    """Return whether a run only becomes longer by this change; `train.tokens` null is without end."""
    if field == "train.tokens":
        return recorded is not None and (wanted is None or wanted > recorded)
    return field == "train.steps" and bool(wanted > recorded)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the lock of `directory`.

    Raises:
        InputError: another process runs in it, or the lock is no regular file.
    """
    with require_lock(directory / LOCK) as file:
        if not try_lock(file):
            raise InputError(f"--resume: {directory} is still running; wait for it, or end it")
        yield
