"""A sweep goes on in its directory if it is the same one, and may grow."""

from pathlib import Path

import pytest

from arl.errors import InputError
from arl.metrics.run_files import SWEEP_MANIFEST, SweepManifest, read_manifest
from arl.sweep.directory import open_directory
from arl.sweep.request import read_request
from arl.sweep.sweep_arms import check_arms


def note(text: str) -> None:
    """Print nothing."""


def begin(recipe: Path, axis: str, seeds: str = "2", *overrides: str) -> SweepManifest:
    """Write the directory of a sweep as `arl sweep` does before it starts runs."""
    request = read_request(recipe, name="study", axes=[axis], seeds=seeds, overrides=overrides)
    checked = check_arms(request, note)
    directory = recipe.parent / "runs" / "study"
    with open_directory(directory, checked):
        return read_manifest(directory / SWEEP_MANIFEST)


def test_arms_and_seeds_may_be_added_and_none_is_lost(recipe: Path) -> None:
    begin(recipe, "rollout.staleness=0,2")
    manifest = begin(recipe, "rollout.staleness=2,4", "1,3")
    assert manifest.recipe["train"]["steps"] == 6
    assert manifest.arms == {f"staleness={bound}": {"rollout.staleness": bound} for bound in (0, 2, 4)}


def test_a_sweep_that_would_compute_something_else_is_refused_with_every_difference(recipe: Path) -> None:
    begin(recipe, "rollout.staleness=0,2")
    with pytest.raises(InputError) as refused:
        begin(recipe, "rollout.staleness=2,4", "2", "train.steps=7", "train.learning_rate=0.1")
    message = str(refused.value)
    assert "the recipe of all arms: train.steps = 7: the sweep has 6" in message
    assert "the recipe of all arms: train.learning_rate = 0.1: the sweep has 0.00015" in message
    assert message.count("train.steps") == 1, "no arm repeats it"
    assert "start another sweep by --name" in message
    assert len(begin(recipe, "rollout.staleness=2", "2", "deadlines.step=5").arms) == 2


def test_a_directory_of_something_else_is_left_alone(recipe: Path) -> None:
    directory = recipe.parent / "runs" / "study"
    directory.mkdir(parents=True)
    (directory / "notes.txt").touch()
    with pytest.raises(InputError, match=r"study: exists and is no sweep; give the sweep another name by --name"):
        begin(recipe, "rollout.staleness=0,2")
