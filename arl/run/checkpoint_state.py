"""Define what a checkpoint holds beside the trainer's tensors, and how checkpoints are named.

checkpoints/step_N/   run.msgpack    controller, metrics, clock: a RunState
                      weights/vM     versions that engines serve, or still need
"""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from arl.data import msgpack_arrays
from arl.errors import DataError
from arl.files import decode_with, find, read_regular
from arl.metrics.recorder_state import RecorderState
from arl.metrics.run_files import METRICS_FILE, TRACE_FILE, TRAJECTORIES
from arl.metrics.trajectory_files import file_name
from arl.rollout.controller_state import ControllerState
from arl.run.file_manifest import reading
from arl.types import Accuracy

STATE = "run.msgpack"
STATE_BYTES = 1 << 36  # a bound for what is no state; groups of long episodes are gigabytes
OLDER = "weights"  # directory of the versions before the checkpoint's
MOST_DIGITS = 18  # of a number in a name
STEP = "step_"  # begins the name of a checkpoint


class RunState(Struct, frozen=True):
    """Hold everything that a run is at one instant, except the trainer's tensors."""

    recipe: dict[str, Any]  # as JSON
    inputs: str  # sha256 of problems and lags: see Plan.sha256
    time: float  # clock seconds
    before: Accuracy | None  # the evaluation before training
    controller: ControllerState
    recorder: RecorderState


def load_state(checkpoint: Path) -> RunState:
    """Read the state of `checkpoint`.

    Raises:
        DataError: there is none, or another version of arl wrote it.
        InputError: it cannot be read.
    """
    with reading(f"{checkpoint}: {STATE}"):
        encoded = read_regular(checkpoint / STATE, STATE_BYTES)
    try:
        state: RunState = decode_with(msgpack_arrays.decoder(RunState), encoded)
    except msgspec.DecodeError as error:
        raise DataError(f"{checkpoint}: {STATE} is not of this version of arl ({error})") from error
    return state


def growing_files(recorder: RecorderState) -> dict[str, int]:
    """Map the files that a run appends to, to the bytes that a state counts on."""
    sizes = {METRICS_FILE: recorder.metrics_bytes, TRACE_FILE: recorder.trace_bytes}
    return {name: size for name, size in sizes.items() if size > 0}


def complete_files(recorder: RecorderState) -> list[str]:
    """Name the trajectory files that a state counts on."""
    return [f"{TRAJECTORIES}/{file_name(number)}" for number in range(recorder.num_files)]


def checkpoints_in(directory: Path) -> list[Path]:
    """List whatever has the name of a checkpoint, oldest first.

    Raises:
        OSError: the directory is there and cannot be read.
    """
    found = {}
    try:
        paths = list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    for path in paths:
        step = number_after(STEP, path.name) if path.name.startswith(STEP) else None
        if step is not None:
            found[step] = path
    return [found[step] for step in sorted(found)]


def step_of(checkpoint: Path) -> int:
    """Return the version in the name of a checkpoint."""
    return int(checkpoint.name.removeprefix(STEP))


def older_versions(checkpoint: Path, served: int) -> dict[int, str]:
    """Map each version that was saved beside `checkpoint`, from `served` on, to the directory of its weights."""
    older = {}
    for path in find(checkpoint / OLDER, "v*"):
        version = number_after("v", path.name)
        if version is not None and version >= served:
            older[version] = str(path)
    return older


def number_after(prefix: str, name: str) -> int | None:
    """Return the number that follows `prefix` and ends a name; None: it is not the one way to write a number.

    No run counts to more than MOST_DIGITS digits, and a longer name could not be kept as refused_NAME.

    >>> number_after("step_", "step_40"), number_after("step_", "step_040"), number_after("step_", "step_4.old")
    (40, None, None)
    """
    digits = name.removeprefix(prefix)
    is_number = digits.isascii() and digits.isdecimal() and (digits == "0" or digits[0] != "0")
    return int(digits) if is_number and len(digits) <= MOST_DIGITS else None
