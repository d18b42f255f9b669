"""Open the directory of a sweep, and say which of its runs are finished, begun or new.

    <output.directory>/<sweep>/  sweep.json              what the sweep consists of: SweepManifest
                                 recipes/<arm>.yaml      the whole recipe of each arm
                                 <arm>/seed-<n>/         run directories of `arl train`
                                 logs/<arm>/seed-<n>.log what each run wrote to its console
                                 sweep.lock              held by the one process that runs the sweep

Only what is under logs/ depends on the clock of the machine.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from arl.config.recipe import Recipe
from arl.config.recipe_file import differences, dump_recipe, read_with_places
from arl.errors import InputError
from arl.files import replace_file, require_lock, try_lock, writing
from arl.metrics.run_files import SUMMARY, SWEEP_MANIFEST
from arl.run.evaluation.scoreboard import CHECKPOINTS
from arl.run.resume import FREE, FREE_ON_THE_WALL
from arl.sweep.check_arms import CheckedArm, CheckedSweep
from arl.sweep.request import SweepRequest

SWEEP_LOCK = "sweep.lock"
RECIPES = "recipes"
LOGS = "logs"
NOT_COMPUTED = ("name", "seed", *FREE)  # fields in which an arm may differ from what it was
State = Literal["finished", "begun", "new"]


class SweepManifest(Struct, frozen=True, kw_only=True):
    """Hold a sweep.

    Args:
        recipe: what all arms have in common, resolved: the sweep's recipe without the settings of an arm.
        arms: name -> the settings that make the arm, as in {"rollout.staleness": 8}.
    """

    recipe: dict[str, Any]
    arms: dict[str, dict[str, Any]]


class SweepRun(Struct, frozen=True):
    """Hold one run of a sweep: an arm with a seed."""

    arm: CheckedArm
    seed: int
    sweep: Path

    def __str__(self) -> str:
        return f"{self.arm.name} seed {self.seed}"

    @property
    def name(self) -> str:
        """Return the name of its directory in the arm's."""
        return f"seed-{self.seed}"

    @property
    def relative(self) -> str:
        """Return its directory in the sweep's."""
        return f"{self.arm.name}/{self.name}"

    @property
    def directory(self) -> Path:
        """Return its run directory."""
        return self.sweep / self.relative

    @property
    def recipe_file(self) -> Path:
        """Return the file with the recipe of its arm."""
        return self.sweep / RECIPES / f"{self.arm.name}.yaml"

    @property
    def log(self) -> Path:
        """Return the file with what it wrote to its console."""
        return self.sweep / LOGS / f"{self.relative}.log"

    @property
    def state(self) -> State:
        """Return how far it has come: a run that has its summary is finished."""
        if os.path.exists(self.directory / SUMMARY):
            return "finished"
        return "begun" if os.path.exists(self.directory) else "new"

    @property
    def has_checkpoint(self) -> bool:
        """Return whether there is something to go on from."""
        checkpoints = self.directory / CHECKPOINTS
        return os.path.isdir(checkpoints) and any(name.startswith("step_") for name in os.listdir(checkpoints))


def sweep_path(request: SweepRequest, checked: CheckedSweep) -> Path:
    """Return the directory of the sweep."""
    return Path(checked.base.output.directory) / request.name


def list_runs(directory: Path, checked: CheckedSweep) -> list[SweepRun]:
    """List the runs in the order in which they start: all arms with one seed, then all with the next.

    So a sweep that is not finished yet has equally many seeds of every arm.
    """
    return [SweepRun(arm, seed, directory) for seed in checked.seeds for arm in checked.arms]


def check_directory(directory: Path, checked: CheckedSweep) -> SweepManifest | None:
    """Check that the sweep can go on in `directory`; return what it holds, None if it holds nothing.

    Raises:
        InputError: it is no sweep's, or its recipe or an arm of it computed something else.
    """
    _refuse_foreign(directory)
    if not os.path.exists(directory / SWEEP_MANIFEST):
        return None
    manifest = read_manifest(directory)
    of_recipe = _changes_of_recipe(manifest, checked)
    lines = list(of_recipe.values())
    for arm in checked.arms:
        if arm.name in manifest.arms:
            lines += [line for field, line in _changes_of_arm(directory, arm) if field not in of_recipe]
    if lines:
        raise InputError(
            "\n".join(lines) + f"\n{directory} was made with other recipes: give what it was made with, or start "
            "another sweep by --name"
        )
    return manifest


def read_manifest(directory: Path) -> SweepManifest:
    """Read the manifest of a sweep."""
    return msgspec.json.decode((directory / SWEEP_MANIFEST).read_bytes(), type=SweepManifest)


def _refuse_foreign(directory: Path) -> None:
    """Refuse a directory of something else. An empty one is a sweep's that was killed before it had its lock.

    Raises:
        InputError: it has files, and no lock of a sweep.
    """
    if not os.path.exists(directory) or os.path.exists(directory / SWEEP_LOCK):
        return
    if any(directory.iterdir()):
        raise InputError(f"{directory}: exists and is no sweep; give the sweep another name by --name")


def _changes_of_recipe(manifest: SweepManifest, checked: CheckedSweep) -> dict[str, str]:
    """Write for each field what the recipe of all arms had and has now, without fields that every arm sets."""
    settings = [*manifest.arms.values(), *(arm.arm.settings for arm in checked.arms)]
    set_by_all = set.intersection(*map(set, settings))
    lines = {}
    for field, before, now in differences(manifest.recipe, checked.base.model_dump(mode="json")):
        if not field.startswith(_free(checked.base)) and field not in set_by_all:
            lines[field] = f"the recipe of all arms: {field} = {now!r}: the sweep has {before!r}"
    return lines


def _free(recipe: Recipe) -> tuple[str, ...]:
    """Return the beginnings of the fields that may change when a sweep goes on."""
    if recipe.world_traits.restarts_at_checkpoints:
        return NOT_COMPUTED
    return NOT_COMPUTED + FREE_ON_THE_WALL


def _changes_of_arm(directory: Path, arm: CheckedArm) -> Iterator[tuple[str, str]]:
    """Yield each field in which the arm would compute something else, and the difference in words."""
    recorded, _ = read_with_places(directory / RECIPES / f"{arm.name}.yaml")
    for field, before, now in differences(recorded, arm.recipe.model_dump(mode="json")):
        if not field.startswith(_free(arm.recipe)):
            yield field, f"arm {arm.name}: {field} = {now!r}: the sweep has {before!r}"


@contextlib.contextmanager
def open_directory(directory: Path, checked: CheckedSweep) -> Iterator[None]:
    """Make or continue the sweep's directory, write what it consists of, and hold its lock.

    Raises:
        InputError: another process runs the sweep, or the directory cannot be written or is another sweep's.
        DiskError: a file in it cannot be written.
    """
    _refuse_foreign(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"output.directory {directory.parent}: cannot be written ({error.strerror})") from error
    with require_lock(directory / SWEEP_LOCK) as lock:
        if not try_lock(lock):
            raise InputError(f"{directory}: another process runs this sweep; wait for it, or end it")
        before = check_directory(directory, checked)
        with writing(directory):
            _write(directory, checked, before)
        yield


def _write(directory: Path, checked: CheckedSweep, before: SweepManifest | None) -> None:
    """Write recipes and sweep.json; arms that the sweep had already are kept."""
    (directory / RECIPES).mkdir(exist_ok=True)
    arms = {} if before is None else dict(before.arms)
    for arm in checked.arms:
        replace_file(directory / RECIPES / f"{arm.name}.yaml", dump_recipe(arm.recipe).encode())
        arms[arm.name] = arm.arm.settings
    manifest = SweepManifest(recipe=checked.base.model_dump(mode="json"), arms=arms)
    replace_file(directory / SWEEP_MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))
