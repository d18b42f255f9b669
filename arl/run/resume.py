"""Begin a run: in a new directory, or from the last intact checkpoint of an old one.

names on the hub ─► their commits ─► preflight ─► RunContext: a new directory
                                                  RunContext: the old directory, and a checkpoint (arl train --resume)

Everything that can be refused is refused here, before anything is started or written.
"""

import contextlib
import glob
import itertools
import math
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec import structs

from arl.config.recipe import Data, Model, Recipe, Train
from arl.config.recipe_file import differences, dump_recipe, load_recipe
from arl.data.hub import COMMIT, PREFIX, HubFiles, hub_commit, is_local, parse_hub_files, split_revision
from arl.errors import DataError, InputError
from arl.files import held_lock, replace_file, writing
from arl.metrics.console import ConsoleDisplay
from arl.metrics.run_files import BASE_MODEL, GIT_COMMIT, LOCK, LOGS, RECIPE, SUMMARY
from arl.outputs import go_on_in
from arl.run.checkpoint import RunState, clear_after, newest_intact
from arl.run.evaluation.scoreboard import CHECKPOINTS
from arl.run.plan_text import named, notes
from arl.run.preflight import Plan, preflight
from arl.run.rewards import reward_names, reward_sha256
from arl.run.world import RunContext
from arl.train.optimizer import schedule_of

# Fields that a resumed run may change: they change nothing that is computed.
FREE = ("cluster.", "deadlines.", "eval.every", "output.directory", "output.keep_checkpoints")
# Fields that it may change on the wall clock alone: in virtual time they change the schedule, or mean nothing.
FREE_ON_THE_WALL = (
    "engine.",
    "launcher",
    "output.",
    "reward.memory_gb",
    "reward.on_error",
    "reward.workers",
    "rollout.max_failed_share",
    "rollout.max_rejected_share",
    "sync.check",
    "sync.transport",
    "train.checkpointing",
    "train.compile",
    "train.min_ranks",
    "train.ranks",
    "train.reshard",
    "train.shard_ranks",
    "train.threads",
)
# Names the commit of the working directory, with -dirty where files differ from it; fails without git.
DESCRIBE = ("timeout", "5", "git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")


@contextlib.contextmanager
def begin(recipe: Recipe, display: ConsoleDisplay, resumed: Path | None) -> Iterator[RunContext]:
    """Hold the lock of a new run directory, or of the directory `resumed`, whose run goes on.

    Raises:
        InputError: something that is known to fail before the start; nothing is changed.
        DiskError: a file cannot be renamed or written.
    """
    if resumed is not None:
        with held_lock(resumed / LOCK, f"--resume: {resumed} is still running; wait for it, or end it"):
            go_on_in(resumed / LOGS)
            plan = preflight(recipe)
            model, state = _resume(recipe, plan, resumed, display)
            yield RunContext(recipe=recipe, plan=plan, directory=resumed, display=display, model=model, state=state)
        return
    plan = preflight(recipe)
    directory = new_run_directory(recipe)
    with held_lock(directory / LOCK, f"{directory}: another process resumes it"):
        go_on_in(directory / LOGS)
        _write_recipe(recipe, directory)
        display.note(f"run directory {directory}; weights travel by {plan.transport}")
        display.note("; ".join(map(" ".join, named(recipe))))
        for note in notes(recipe, plan):
            display.note(note)
        yield RunContext(recipe=recipe, plan=plan, directory=directory, display=display)


def new_run_directory(recipe: Recipe) -> Path:
    """Make <directory>/<name>, or the first of <name>-2, <name>-3… that does not exist yet.

    A run never overwrites another.

    Raises:
        InputError: the directory cannot be written.
    """
    first = directory = recipe.run_directory
    for number in itertools.count(2):
        try:
            directory.mkdir(parents=True)
            break
        except FileExistsError:
            directory = first.with_name(f"{first.name}-{number}")
        except OSError as error:
            raise InputError(f"output.directory {directory.parent}: cannot be written ({error.strerror})") from error
    return directory


def run_to_resume(recipe: Recipe, file: Path) -> Path:
    """Return the run in whose directory the recipe's file lies; otherwise the newest run of the recipe's name.

    Raises:
        InputError: there is no such run.
    """
    if file.name == RECIPE and (file.parent / LOCK).exists():
        return file.parent
    first = recipe.run_directory
    runs = {}
    for path in first.parent.glob(f"{glob.escape(first.name)}*"):
        number = re.fullmatch(r"(?:-(\d+))?", path.name.removeprefix(first.name))
        if number is not None and (path / LOCK).exists():
            runs[int(number[1] or 1)] = path
    if not runs:
        raise InputError(f"--resume: there is no run {first}; start it without --resume")
    return runs[max(runs)]


def _resume(recipe: Recipe, plan: Plan, directory: Path, display: ConsoleDisplay) -> tuple[Path, RunState]:
    """Find the checkpoint that the run goes on from, and its state.

    The summary of a finished run is kept as summary-step_N.json.

    Raises:
        InputError: there is none, it is another recipe's, or the run is finished and not extended; nothing is changed.
        DiskError: a file cannot be renamed or written.
    """
    checkpoint, state = newest_intact(directory / CHECKPOINTS, display.note)
    _refuse_other_run(recipe, plan, checkpoint, state)
    base = directory / BASE_MODEL
    if base.is_symlink() and not base.exists():
        raise DataError(f"{base}: is a link to {os.readlink(base)}, which is gone, and the run needs it; put it back")
    is_finished = (directory / SUMMARY).exists()
    version = state.controller.version
    tokens = state.controller.tokens_trained
    if is_finished and recipe.train.is_done(version, tokens):
        limit, reached = ("tokens", tokens) if recipe.train.steps > version else ("steps", version)
        raise InputError(
            f"--resume: {directory} is finished after {version} steps; see its {SUMMARY}, extend it by "
            f"--set train.{limit}=N with N > {reached}, or start a new run"
        )
    # What follows changes files, and so whatever can be refused was refused above.
    with writing(directory):
        clear_after(checkpoint)
        if is_finished:
            (directory / SUMMARY).rename(directory / f"summary-step_{version}.json")
    _write_recipe(recipe, directory)
    display.note(f"resuming {directory} from {checkpoint.name}; what its files hold past that is removed")
    _say_what_changes(recipe, state, display.note)
    return checkpoint, state


def _say_what_changes(recipe: Recipe, state: RunState, note: Callable[[str], None]) -> None:
    """Note what may differ from the checkpoint's run, and changes the course of the training."""
    update = state.controller.version * recipe.train.minibatches
    expected = schedule_of(Train.model_validate(state.recipe["train"])).rate(update)
    rate = schedule_of(recipe.train).rate(update)
    if not math.isclose(rate, expected, rel_tol=1e-3):
        note(f"learning rate {expected:.3g} → {rate:.3g}, because train.steps is {recipe.train.steps}")
    if state.reward not in ("", reward_sha256(recipe)):
        names = ", ".join(reward_names(recipe))
        note(f"reward.function {names}: its source has changed since the checkpoint was written")


def _write_recipe(recipe: Recipe, directory: Path) -> None:
    file = directory / RECIPE
    commit = subprocess.run(DESCRIBE, capture_output=True, text=True, check=False)
    header = "" if commit.returncode else f"{GIT_COMMIT}{commit.stdout}"
    with writing(file):
        replace_file(file, f"{header}{dump_recipe(recipe)}".encode())


def _refuse_other_run(recipe: Recipe, plan: Plan, checkpoint: Path, state: RunState) -> None:
    """Check that the recipe computes what the checkpoint's run computed; `train.steps` and `train.tokens` may grow.

    Raises:
        InputError: a field that decides what is computed differs.
        DataError: problems or lags differ.
    """
    free = FREE if recipe.world_traits.restarts_at_checkpoints else FREE + FREE_ON_THE_WALL
    recorded_steps = state.recipe["train"]["steps"]
    for field, recorded, wanted in differences(state.recipe, recipe.model_dump(mode="json")):
        # With an exact lag, the groups that an ended run had begun are of versions that no engine serves any more.
        may_grow = field == "train.steps" or (field == "train.tokens" and recipe.rollout.lag is None)
        grows = may_grow and recorded is not None and (wanted is None or wanted > recorded)
        if not (grows or field.startswith(free)):
            raise InputError(
                f"{field} = {wanted!r}: {checkpoint} was made with {recorded!r}; resume with that"
                f"{' or more' * may_grow}, or start a new run without --resume"
            )
    if plan.sha256(recorded_steps) != state.inputs:
        raise DataError(f"{checkpoint}: was made with other problems or lags than the recipe's files now hold")


# ---- what the recipe names on the Hugging Face hub


def pin_sources(recipe: Recipe, resumed: Path | None = None) -> tuple[Recipe, list[str]]:
    """Put commits in the place of branches and tags, so that a run can be repeated; RUN/recipe.yaml keeps them.

    model.path OWNER/NAME becomes OWNER/NAME@COMMIT, data.path hf://datasets/OWNER/REPO/… hf://datasets/OWNER/REPO@COMMIT/….
    What neither hub nor cache knows stays as it is, with a note.

    Args:
        resumed: directory of the run that goes on, whose commits are taken where it names the same repository.

    Raises:
        DataError: a data path has another form than the hub's.
    """
    before = () if resumed is None else _sections(load_recipe(resumed / RECIPE))
    known = [files for section in before for files in _on_the_hub(section).values()]
    notes: list[str] = []
    model, data, *others = [_pinned(section, known, notes) for section in _sections(recipe)]
    return recipe.model_copy(update={"model": model, "data": data, "mixture": tuple(others)}), notes


def _sections(recipe: Recipe) -> tuple[Model | Data, ...]:
    """Return the sections that may name what is on the hub."""
    return (recipe.model, *recipe.data_sections)


def _pinned(section: Model | Data, known: Sequence[HubFiles], notes: list[str]) -> Model | Data:
    """Return a section with commits, or as it is, maybe with notes.

    Args:
        known: what is pinned in the run that goes on.
    """
    for field, source in _on_the_hub(section).items():
        if COMMIT.fullmatch(source.revision):
            continue
        like = [found.revision for found in known if structs.replace(found, revision=source.revision) == source]
        commit = like[0] if like else hub_commit(source.repo, "dataset" if source.pattern else "model", source.revision)
        if commit is None:
            notes.append(
                f"{'data' if source.pattern else 'model'}.{field} {source}: neither the hub nor the cache says which "
                "commit it is, so it is not pinned, and a resumed run may read another one"
            )
            continue
        section = section.model_copy(update={field: str(structs.replace(source, revision=commit))})
    return section


def _on_the_hub(section: Model | Data) -> dict[str, HubFiles]:
    """Map fields of a section to what they name on the hub; of a model, all files."""
    if isinstance(section, Data):
        paths = {"path": section.path or "", "eval_path": section.eval_path or ""}
        named = {field: path for field, path in paths.items() if path.startswith(PREFIX)}
        return {field: parse_hub_files(path, f"data.{field}") for field, path in named.items()}
    repo, revision = split_revision(section.path or ".")
    is_here = os.path.isdir(section.path or ".") or is_local(repo)
    return {} if is_here else {"path": HubFiles(repo, "", revision or "main")}
