"""Find the newest checkpoint of which every byte is as it was written, and name the damage of those that are not.

newest ─► files of its manifest ─► run.msgpack ─► files of the run, up to the checkpoint ─► used
  ▲                     a damage anywhere is kept for the message              │
  └────────────────────────────── the one before ◄─────────────────────────────┘
"""

from collections.abc import Callable
from pathlib import Path

from arl.errors import DataError
from arl.launch.durable import remove_any
from arl.run.checkpoint_state import RunState, checkpoints_in, complete_files, growing_files, load_state, step_of
from arl.run.evaluation.scoreboard import BEST
from arl.run.file_manifest import check_files


def newest_intact(directory: Path, note: Callable[[str], None]) -> tuple[Path, RunState]:
    """Find the newest intact checkpoint in `directory` and read its state; `note` is called for each damaged one.

    Raises:
        DataError: there is none; names the damage of each.
        InputError: a file cannot be read, although it is there.
    """
    damages: list[str] = []
    for checkpoint in reversed(checkpoints_in(directory)):
        try:
            state = verify(checkpoint)
        except DataError as error:
            damages.append(f"checkpoint {error}")
            continue
        for damage in damages:
            note(f"{damage}: using the one before")
        return checkpoint, state
    remedy = "start the run anew, without --resume"
    raise DataError("\n".join([f"{directory}: no intact checkpoint to resume from; {remedy}", *damages]))


def verify(checkpoint: Path) -> RunState:
    """Check every file of a checkpoint, and that its run has the files that it goes on with; return its state.

    Raises:
        DataError: a file is missing, torn or altered, or the state is of another version of arl; names it.
        InputError: a file is there and cannot be read.
    """
    check_files(checkpoint)
    state = load_state(checkpoint)
    run = checkpoint.parent.parent
    sizes = dict.fromkeys(complete_files(state.recorder), 1) | growing_files(state.recorder)
    for name, size in sizes.items():
        file = run / name
        if not file.is_file() or file.stat().st_size < size:
            raise DataError(f"{checkpoint}: {file} is missing, or shorter than the {size} bytes it counts on")
    return state


def clear_after(checkpoint: Path, note: Callable[[str], None]) -> None:
    """Remove what was half written or half removed; rename what is newer than `checkpoint`, and note the new name."""
    directory = checkpoint.parent
    for pattern in (".step_*.partial", ".step_*.removed"):
        for rest in directory.glob(pattern):
            remove_any(rest)
    for refused in checkpoints_in(directory):
        if step_of(refused) > step_of(checkpoint):
            aside = directory / f"refused_{refused.name}"
            remove_any(aside)
            refused.rename(aside)
            note(f"{refused} is kept as {aside.name}")
    best = directory / BEST
    if best.is_symlink() and not best.exists():
        best.unlink()
