"""Open the directory of a sweep, and say which of its runs are finished, begun or new.

    <output.directory>/<sweep>/  sweep.json              what the sweep consists of: SweepManifest
                                 recipes/<arm>.yaml      the whole recipe of each arm
                                 <arm>/seed-<n>/         run directories of `arl train`
                                 logs/<arm>/seed-<n>.log what each run wrote to its console
                                 sweep.lock              held by the one process that runs the sweep

Only what is under logs/ depends on the clock of the machine.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from arl.config.recipe_file import differences, dump_recipe
from arl.errors import InputError
from arl.files import held_lock, replace_file, writing
from arl.metrics.run_files import LOGS, SUMMARY, SWEEP_MANIFEST, SweepManifest, read_manifest
from arl.outputs import go_on_in
from arl.run.evaluation.scoreboard import CHECKPOINTS
from arl.run.resume import FREE, FREE_ON_THE_WALL
from arl.sweep.sweep_arms import Sweep, SweepArm

SWEEP_LOCK = "sweep.lock"
RECIPES = "recipes"
NOT_COMPUTED = ("name", "seed", *FREE)  # fields in which an arm may differ from what it was


class SweepRun(Struct, frozen=True):
    """Hold one run of a sweep: an arm with a seed."""

    arm: SweepArm
    seed: int
    sweep: Path

    def __str__(self) -> str:
        return f"{self.arm.name} seed {self.seed}"

    @property
    def name(self) -> str:
        """Return the name of its directory in the arm's."""
        return f"seed-{self.seed}"

    @property
    def directory(self) -> Path:
        """Return its run directory."""
        return self.sweep / self.arm.name / self.name

    @property
    def recipe_file(self) -> Path:
        """Return the file with the recipe of its arm."""
        return self.sweep / RECIPES / f"{self.arm.name}.yaml"

    @property
    def log(self) -> Path:
        """Return the file with what it wrote to its console."""
        return self.sweep / "logs" / self.arm.name / f"{self.name}.log"

    @property
    def state(self) -> Literal["finished", "begun", "new"]:
        """Return how far it has come: a run that has its summary is finished."""
        if (self.directory / SUMMARY).exists():
            return "finished"
        return "begun" if self.directory.exists() else "new"

    @property
    def has_checkpoint(self) -> bool:
        """Return whether there is something to go on from."""
        return any((self.directory / CHECKPOINTS).glob("step_*"))


def list_runs(directory: Path, sweep: Sweep) -> list[SweepRun]:
    """List the runs in the order in which they start: all arms with one seed, then all with the next.

    So a sweep that is not finished yet has equally many seeds of every arm.
    """
    return [SweepRun(arm, seed, directory) for seed in sweep.seeds for arm in sweep.arms]


def check_directory(directory: Path, sweep: Sweep) -> dict[str, dict[str, Any]]:
    """Check that the sweep can go on in `directory`; return the arms that it has there, with their settings.

    Raises:
        InputError: it is no sweep's, or its recipe or an arm of it computed something else.
    """
    if directory.exists() and any(directory.iterdir()) and not (directory / SWEEP_LOCK).exists():
        raise InputError(f"{directory}: exists and is no sweep; give the sweep another name by --name")
    if not (directory / SWEEP_MANIFEST).exists():
        return {}
    manifest = read_manifest(directory / SWEEP_MANIFEST)
    ours = {arm.name: arm.settings for arm in sweep.arms}
    pairs = {"the recipe of all arms": (manifest.recipe, sweep.base.model_dump(mode="json"))}
    pairs |= {f"arm {name}": (manifest.arms[name], ours[name]) for name in ours if name in manifest.arms}
    free = NOT_COMPUTED if sweep.base.world_traits.restarts_at_checkpoints else NOT_COMPUTED + FREE_ON_THE_WALL
    lines = [
        f"{what}: {field} = {now!r}: the sweep has {before!r}"
        for what, (theirs, mine) in pairs.items()
        for field, before, now in differences(theirs, mine)
        if not field.startswith(free)
    ]
    if lines:
        raise InputError(
            "\n".join(lines) + f"\n{directory} was made with other recipes: give what it was made with, or start "
            "another sweep by --name"
        )
    return manifest.arms


@contextlib.contextmanager
def open_directory(directory: Path, sweep: Sweep) -> Iterator[None]:
    """Make or continue the sweep's directory, write what it consists of, and hold its lock. Arms in it are kept.

    Raises:
        InputError: another process runs the sweep, or the directory is another sweep's.
        DiskError: it cannot be written.
    """
    check_directory(directory, sweep)  # before its lock makes it a sweep's
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
    with held_lock(directory / SWEEP_LOCK, f"{directory}: another process runs this sweep; wait for it, or end it"):
        go_on_in(directory / LOGS)
        arms = check_directory(directory, sweep)
        with writing(directory):
            (directory / RECIPES).mkdir(exist_ok=True)
            for arm in sweep.arms:
                replace_file(directory / RECIPES / f"{arm.name}.yaml", dump_recipe(arm.recipe).encode())
                arms[arm.name] = arm.settings
            manifest = SweepManifest(recipe=sweep.base.model_dump(mode="json"), arms=arms)
            replace_file(directory / SWEEP_MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))
        yield
