"""Checkpoints of a run: complete or not there, and never believed without their checksums.

    checkpoints/step_N/   model.safetensors, config.json, tokenizer…   what `from_pretrained` reads
                          optimizer.safetensors                        AdamW's moments
                          weights/vM                                   versions that engines serve, or still need
                          run.msgpack                                  controller, metrics, clock: a RunState
                          manifest.json                                bytes and sha256 of every other file

copy (the trainer waits) ─► cut, one instant of the controller ─► in the background: write, checksum, sync, rename
"""

import asyncio
import hashlib
import os
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, ParamSpec

import msgspec
from msgspec import Struct

from arl.clock import deadline, in_thread
from arl.config.recipe import Recipe
from arl.data import msgpack_arrays
from arl.engine.base import Engine
from arl.errors import DataError
from arl.metrics.recorder_state import RecorderState
from arl.metrics.run_files import METRICS_FILE, TRACE_FILE, TRAJECTORIES
from arl.rollout.controller_state import ControllerState
from arl.train.base import Trainer
from arl.types import Accuracy, WeightUpdate

P = ParamSpec("P")

MANIFEST, STATE, OLDER = "manifest.json", "run.msgpack", "weights"
OPTIMIZER = "optimizer.safetensors"


class RunState(Struct, frozen=True):
    """All that a run is, at one instant, but for the trainer's tensors."""

    recipe: dict[str, Any]  # as JSON
    inputs: str  # sha256 of problems and lags: see Plan.sha256
    time: float  # clock seconds
    before: Accuracy | None  # the evaluation before training
    controller: ControllerState
    recorder: RecorderState


class _File(Struct, frozen=True):
    bytes: int
    sha256: str


class RunCheckpoints:
    """Implements the controller's Checkpoints: every `output.checkpoint_every` steps (0: never), and the last.

    Args:
        cut: the run at this instant, around the controller's state.
    """

    def __init__(
        self,
        directory: Path,
        recipe: Recipe,
        engine: Engine,
        trainer: Trainer,
        cut: Callable[[ControllerState], RunState],
    ) -> None:
        self._directory, self._recipe, self._engine, self._trainer = directory, recipe, engine, trainer
        self._cut = cut
        self._idle = asyncio.Event()
        self._idle.set()

    def due(self, version: int) -> bool:
        return version == next_checkpoint(self._recipe, version - 1)

    async def copy(self, version: int) -> None:
        """See Checkpoints. One checkpoint is written at a time: it waits for the last one."""
        await self._idle.wait()
        self._idle.clear()
        for older in self._older(version):
            update = await self._trainer.weights(older)
            assert update.version == older, f"version {older} is served, and no longer published"
            await self._off_the_loop(_copy_model, update, self._partial(version) / OLDER / f"v{older}")
        await self._trainer.save(self._partial(version))

    def _older(self, version: int) -> range:
        """Versions that engines begin with when this one is resumed, since nothing could compute them again.

        With exact lag, all that they serve or have yet to serve. In virtual time, what they serve, lest checkpoints
        made policies fresher. Otherwise engines that begin with the checkpoint's own version serve as well.
        """
        served = min(self._engine.loaded_version, version)
        if self._recipe.rollout.lag is not None:
            return range(served, version)
        return range(served, min(served + 1, version)) if self._recipe.world == "virtual" else range(0)

    def write(self, state: ControllerState) -> Coroutine[Any, Any, None]:
        """See Checkpoints."""
        return self._write(self._cut(state))

    async def _write(self, state: RunState) -> None:
        version = state.controller.version
        what = f"writing the checkpoint of version {version}"
        async with deadline(self._recipe.deadlines.step, "controller", what):
            await self._trainer.saved()
            final = self._directory / f"step_{version}"
            await self._off_the_loop(_write_state, self._partial(version), final, state)
        self._idle.set()

    async def _off_the_loop(self, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """In a thread, which virtual time has no place for."""
        if self._recipe.world == "virtual":
            work(*args, **kwargs)
        else:
            await in_thread(work, *args, **kwargs)

    def _partial(self, version: int) -> Path:
        return self._directory / f".step_{version}.partial"


def next_checkpoint(recipe: Recipe, version: int) -> int:
    """The first version after `version` that is saved."""
    every, steps = recipe.output.checkpoint_every, recipe.train.steps
    return min(steps, (version // every + 1) * every) if every else steps


def older_versions(checkpoint: Path, served: int) -> dict[int, str]:
    """version -> directory of the weights that were saved with it, from what engines `served` when it was cut."""
    saved = {int(path.name.removeprefix("v")): str(path) for path in (checkpoint / OLDER).glob("v*")}
    return {version: path for version, path in saved.items() if version >= served}


def _copy_model(update: WeightUpdate, target: Path) -> None:
    """What an engine loads, without what else a checkpoint holds."""
    target.mkdir(parents=True)
    for file in Path(update.path).iterdir():
        if file.name == "config.json" or "model" in file.name:
            shutil.copy2(file, target)
    if update.state is not None:
        from arl.sync.file_target import write_state  # imports torch, as whoever holds the state has

        write_state(target, update.state)


def _write_state(partial: Path, final: Path, state: RunState) -> None:
    (partial / STATE).write_bytes(msgpack_arrays.encoder().encode(state))
    run = final.parent.parent
    for path in [run / METRICS_FILE, run / TRACE_FILE, *_files(run / TRAJECTORIES), run / TRAJECTORIES]:
        if path.exists():  # what the state counts on must be as durable as itself
            _sync(path)
    seal(partial, final)


def seal(partial: Path, final: Path) -> None:
    """Make what is in `partial` the checkpoint `final`: checksums, everything on disk, then the name."""
    files = {str(file.relative_to(partial)): _File(*_sum(file)) for file in _files(partial)}
    (partial / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(files)))
    for path in [*partial.rglob("*"), partial]:
        _sync(path)
    partial.rename(final)
    for path in (final.parent, final.parent.parent):
        _sync(path)


def verify(checkpoint: Path) -> None:
    """Read every byte of it.

    Raises:
        DataError: a file is missing, torn or altered; names it.
    """
    try:
        files = msgspec.json.decode((checkpoint / MANIFEST).read_bytes(), type=dict[str, _File])
    except (OSError, msgspec.DecodeError) as error:
        raise DataError(f"checkpoint {checkpoint}: no {MANIFEST} that can be read ({error})") from error
    has_weights = any(
        name.startswith("model") and name.endswith(".safetensors") for name in files
    )  # or many, of a large model
    if not has_weights or not {STATE, "config.json", OPTIMIZER} <= files.keys():
        raise DataError(f"checkpoint {checkpoint}: {MANIFEST} does not name all of its files")
    for name, expected in files.items():
        try:
            size, digest = _sum(checkpoint / name)
        except OSError as error:
            raise DataError(f"checkpoint {checkpoint}: {name} cannot be read ({error.strerror})") from error
        if size != expected.bytes:
            raise DataError(f"checkpoint {checkpoint}: {name} is torn: {size} of {expected.bytes} bytes")
        if digest != expected.sha256:
            raise DataError(f"checkpoint {checkpoint}: {name} is corrupt: its sha256 is not that of {MANIFEST}")


def newest_intact(directory: Path, note: Callable[[str], None]) -> tuple[Path, RunState]:
    """The newest checkpoint in `directory` that can be believed, with its state; those that cannot are told.

    Raises:
        DataError: there is none.
    """
    for checkpoint in sorted(_checkpoints(directory), key=_step, reverse=True):
        try:
            verify(checkpoint)
            state = load_state(checkpoint)
            _refuse_lost_files(directory.parent, state, checkpoint)
        except DataError as error:
            note(f"{error}: using the one before")
        else:
            return checkpoint, state
    raise DataError(f"{directory}: no intact checkpoint to resume from; start the run anew, without --resume")


def clear_after(checkpoint: Path) -> None:
    """Remove what was half written, and put aside as refused_step_N what is newer than `checkpoint`."""
    for partial in checkpoint.parent.glob(".step_*.partial"):
        shutil.rmtree(partial)
    for refused in _checkpoints(checkpoint.parent):
        if _step(refused) > _step(checkpoint):
            aside = refused.with_name(f"refused_{refused.name}")
            shutil.rmtree(aside, ignore_errors=True)
            refused.rename(aside)


def _refuse_lost_files(run: Path, state: RunState, checkpoint: Path) -> None:
    """Raises DataError: the run's files end before the checkpoint does."""
    recorder = state.recorder
    files = {run / METRICS_FILE: recorder.metrics_bytes, run / TRACE_FILE: recorder.trace_bytes}
    files |= {run / TRAJECTORIES / f"{n:06d}.parquet": 1 for n in range(recorder.num_files)}
    for file, size in files.items():
        found = file.stat().st_size if file.exists() else 0
        if found < size:
            raise DataError(f"checkpoint {checkpoint}: {file} has {found} bytes, and it counts on {size}")


def load_state(checkpoint: Path) -> RunState:
    """Raises DataError: written by another version of arl."""
    try:
        state: RunState = msgpack_arrays.decoder(RunState).decode((checkpoint / STATE).read_bytes())
    except msgspec.MsgspecError as error:
        raise DataError(f"checkpoint {checkpoint}: {STATE} is not of this version of arl ({error})") from error
    return state


def _checkpoints(directory: Path) -> list[Path]:
    return [path for path in directory.glob("step_*") if path.name.removeprefix("step_").isdecimal()]


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step_"))


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _sum(file: Path) -> tuple[int, str]:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return stream.tell(), digest


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
