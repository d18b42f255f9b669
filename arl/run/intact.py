"""Find the newest checkpoint of which every byte is as it was written, and name the damage of those that are not.

newest ─► manifest ─► files of the checkpoint ─► run.msgpack ─► files of the run, up to the checkpoint ─► state ─► used
  ▲                     a damage anywhere is kept for the message                                          │
  └────────────────────────────── the one before ◄─────────────────────────────────────────────────────────┘
"""

import os
from collections.abc import Callable, Collection
from pathlib import Path

from arl.errors import DataError
from arl.files import find
from arl.launch.durable import remove_any, unused_name
from arl.run.checkpoint_state import (
    STATE,
    RunState,
    checkpoints_in,
    complete_files,
    growing_files,
    load_state,
    step_of,
)
from arl.run.evaluation.scoreboard import BEST
from arl.run.file_manifest import Manifest, check_files, compare, read_manifest, reading, refuse_links
from arl.run.verify_state import verify_state


def newest_intact(directory: Path, note: Callable[[str], None]) -> tuple[Path, RunState]:
    """Find the newest intact checkpoint in `directory` and read its state; `note` is called for each damaged one.

    Raises:
        DataError: there is none; names the damage of each.
        InputError: a checkpoint or a file of the run cannot be read, so that nobody knows whether it is intact.
    """
    damages: list[str] = []
    with reading(str(directory)):
        checkpoints = checkpoints_in(directory)
    for checkpoint in reversed(checkpoints):
        try:
            state = verify(checkpoint)
        except DataError as error:
            damages.append(f"checkpoint {error}")
            continue
        for damage in damages:
            note(f"{damage}: using the one before")
        return checkpoint, state
    raise DataError("\n".join([f"{directory}: no intact checkpoint to resume from; {_remedy(damages)}", *damages]))


def _remedy(damages: Collection[str]) -> str:
    anew = "start the run anew, without --resume"
    if not damages:
        return anew
    return f"{anew}, or copy the files that are named below back from where they are whole"


def verify(checkpoint: Path) -> RunState:
    """Check every file of a checkpoint, those of its run that it counts on, and its state, which is returned.

    Raises:
        DataError: a file is missing, too many, torn or altered, or the state is none that a run has; names it.
        InputError: a file cannot be read.
    """
    with reading(str(checkpoint)):
        is_link = os.path.islink(checkpoint)
    if is_link:
        raise DataError(f"{checkpoint}: is a link; put there what belongs there")
    manifest = read_manifest(checkpoint)
    _refuse_incomplete(checkpoint, manifest)
    check_files(checkpoint, manifest)
    state = load_state(checkpoint)
    version = state.controller.version
    if version != step_of(checkpoint):
        raise DataError(f"{checkpoint}: holds version {version}, which is another than its name says")
    _check_counted_on(checkpoint, manifest, state)
    verify_state(checkpoint, state)
    return state


def _refuse_incomplete(checkpoint: Path, manifest: Manifest) -> None:
    has_tensors = all(_has_tensors(manifest.files, stem) for stem in ("model", "optimizer"))
    if not has_tensors or not {STATE, "config.json"} <= manifest.files.keys():
        raise DataError(f"{checkpoint}: its manifest does not name all files of a checkpoint")


def _has_tensors(files: Collection[str], stem: str) -> bool:
    """Return whether `files` has STEM.safetensors, or one of the many files of a large model or of several ranks."""
    return any(name.startswith(stem) and name.endswith(".safetensors") for name in files)


def _check_counted_on(checkpoint: Path, manifest: Manifest, state: RunState) -> None:
    """Check the files of the run up to the checkpoint: a resumed run appends to them.

    Raises:
        DataError: one is missing, torn or altered, or the manifest lists others than the state counts on.
    """
    run = checkpoint.parent.parent
    growing = growing_files(state.recorder)
    if len(manifest.counted_on) != len(growing) + state.recorder.num_files:
        raise DataError(f"{checkpoint}: its manifest and its {STATE} count on different files of the run")
    complete = complete_files(state.recorder)
    for name in (*growing, *complete):
        expected = manifest.counted_on.get(name)
        if expected is None or growing.get(name, expected.bytes) != expected.bytes:
            raise DataError(f"{checkpoint}: its manifest and its {STATE} count on different parts of {name}")
        refuse_links(str(checkpoint), run, name)
        compare(f"{checkpoint}: {run / name}", run / name, expected, whole=name not in growing)


def clear_after(checkpoint: Path, note: Callable[[str], None]) -> None:
    """Remove what was half written or half removed; rename what is newer than `checkpoint`, and note the new name."""
    directory = checkpoint.parent
    for pattern in (".step_*.partial", ".step_*.removed"):
        for rest in find(directory, pattern):
            remove_any(rest)
    for refused in checkpoints_in(directory):
        if step_of(refused) > step_of(checkpoint):
            aside = unused_name(directory / f"refused_{refused.name}")
            refused.rename(aside)
            note(f"{refused} is kept as {aside.name}")
    best = directory / BEST
    if os.path.islink(best) and not os.path.exists(best):
        best.unlink()
