"""Damage a run and its checkpoints, and look for one to resume from, as `--resume` does.

What is found is the newest checkpoint that nobody has touched. If there is none, the error names every one.
"""

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from arl.errors import InputError
from arl.run.checkpoint_state import checkpoints_in
from arl.run.intact import clear_after, newest_intact
from tests.fuzz.checkpoint_damage import damage
from tests.fuzz.checkpoint_run import RUN, WholeRun, make_run, snapshot
from tests.fuzz.trials import Draw, Edge, Trial

MOST_DAMAGES = 4


@contextlib.contextmanager
def prepare(folder: Path) -> Iterator[Draw]:
    """Make a run with three checkpoints; every trial damages a copy of it."""
    make_run(folder)
    whole = WholeRun(folder / RUN)
    numbers = itertools.count()

    def draw(random: Random) -> Trial:
        copy = folder / f"trial-{next(numbers)}"
        shutil.copytree(folder / RUN, copy)
        done = [damage(random, copy) for _ in range(random.randint(1, MOST_DAMAGES))]
        return Trial(f"{copy.name}: {', '.join(done)}", lambda: _resume(copy, whole))

    yield draw


def _resume(run: Path, whole: WholeRun) -> None:
    """Find the checkpoint to resume from.

    Raises:
        InputError: there is none.
    """
    try:
        _find(run, whole)
    finally:
        shutil.rmtree(run)


def _find(run: Path, whole: WholeRun) -> None:
    untouched = whole.untouched(run)
    directory = run / "checkpoints"
    before = checkpoints_in(directory)
    notes: list[str] = []
    if not untouched:
        _check_refusal(directory)
    found, state = newest_intact(directory, notes.append)
    assert untouched, f"{found.name} is used, and nothing is as it was written"
    assert found.name == f"step_{untouched[-1]}", f"{found.name} is used, and not step_{untouched[-1]}"
    assert state.controller.version == untouched[-1]
    newer = before[before.index(found) + 1 :]
    assert all(any(path.name in note for note in notes) for path in newer), f"not all of {newer} are named: {notes}"
    content = snapshot(found)
    clear_after(found, notes.append)
    kept = [name for name in os.listdir(directory) if name.startswith("refused_")]
    assert len(kept) >= len(newer), f"of {newer} only {kept} are left"
    assert checkpoints_in(directory)[-1] == found
    assert snapshot(found) == content


def _check_refusal(directory: Path) -> None:
    """Check that the error names every checkpoint, if there is one."""
    with pytest.raises(InputError) as refused:
        newest_intact(directory, lambda note: None)
    for path in checkpoints_in(directory):
        assert path.name in str(refused.value), f"{path.name} is not named: {refused.value}"


EDGE = Edge(prepare, trials=100)  # each copies a run
