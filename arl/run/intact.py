"""Find the newest checkpoint of which every byte is as it was written, and name the damage of those that are not.

newest ─► files of its manifest ─► run.msgpack ─► files of the run, up to the checkpoint ─► used
  ▲                     a damage anywhere is kept for the message              │
  └────────────────────────────── the one before ◄─────────────────────────────┘
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from arl.errors import DataError, InputError
from arl.files import remove_any
from arl.run.checkpoint_state import RunState, checkpoints_in, complete_files, growing_files, load_state, step_of
from arl.run.evaluation.scoreboard import BEST

MANIFEST = "manifest.json"  # {"config.json": {"bytes": 612, "sha256": "…"}, "weights/v3/model.safetensors": …}


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


class FileSum(Struct, frozen=True):
    """Hold the size of a file and its sum."""

    bytes: int
    sha256: str


def write_manifest(directory: Path) -> None:
    """List all files below a directory in its manifest.json.

    Raises:
        OSError: one cannot be read, or the manifest cannot be written.
    """
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    sums = {path.relative_to(directory).as_posix(): _sum(path) for path in files}
    (directory / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(sums)))


def check_files(directory: Path) -> None:
    """Check that a directory holds what its manifest lists, byte for byte.

    Raises:
        DataError: a file is missing, torn or altered; names it.
        InputError: a file is there and cannot be read.
    """
    try:
        sums = msgspec.json.decode((directory / MANIFEST).read_bytes(), type=dict[str, FileSum])
        for name, expected in sums.items():
            _compare(directory, name, expected)
    except (FileNotFoundError, ValueError) as error:
        raise DataError(f"{directory}: {MANIFEST} cannot be read ({error})") from error
    except OSError as error:
        raise InputError(f"{directory} cannot be read ({error}); it may be whole: see that its disk works") from error


def _compare(directory: Path, name: str, expected: FileSum) -> None:
    file = directory / name
    if not file.is_file():
        raise DataError(f"{directory}: {name} is missing")
    size = file.stat().st_size
    if size != expected.bytes:
        raise DataError(f"{directory}: {name} is torn: it has {size} bytes, and {expected.bytes} were written")
    if _sum(file) != expected:
        raise DataError(f"{directory}: {name} is corrupt: its sha256 is not that of {MANIFEST}")


def _sum(file: Path) -> FileSum:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
        return FileSum(stream.tell(), digest.hexdigest())
