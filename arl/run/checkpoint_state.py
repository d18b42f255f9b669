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
from arl.metrics.recorder_state import RecorderState
from arl.metrics.run_files import METRICS_FILE, TRACE_FILE, TRAJECTORIES
from arl.metrics.trajectory_files import file_name
from arl.rollout.controller_state import ControllerState
from arl.types import Accuracy

STATE = "run.msgpack"
OLDER = "weights"  # directory of the versions before the checkpoint's
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
    """
    try:
        state: RunState = msgpack_arrays.decoder(RunState).decode((checkpoint / STATE).read_bytes())
    except FileNotFoundError as error:
        raise DataError(f"{checkpoint}: {STATE} is missing") from error
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
    """List the checkpoints in a directory, oldest first; none if it is not there."""
    found = [path for path in directory.glob(f"{STEP}*") if number_after(STEP, path.name) is not None]
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    """Return the version in the name of a checkpoint."""
    return int(checkpoint.name.removeprefix(STEP))


def older_versions(checkpoint: Path, served: int) -> dict[int, str]:
    """Map each version that was saved beside `checkpoint`, from `served` on, to the directory of its weights."""
    older = {}
    for path in (checkpoint / OLDER).glob("v*"):
        version = number_after("v", path.name)
        if version is not None and version >= served:
            older[version] = str(path)
    return older


def number_after(prefix: str, name: str) -> int | None:
    """Return the number that follows `prefix` and ends a name; None: there is something else.

    >>> number_after("step_", "step_40"), number_after("step_", "step_4.old")
    (40, None)
    """
    digits = name.removeprefix(prefix)
    return int(digits) if digits.isdecimal() else None
