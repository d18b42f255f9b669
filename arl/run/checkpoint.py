"""Write, verify, keep and find the checkpoints of a run.

    checkpoints/step_N/   model.safetensors, config.json, tokenizer…   what `from_pretrained` reads
                          optimizer.safetensors                        AdamW's moments; with several ranks both are
                                                                       one file of each: arl.train.training_copy
                          weights/vM                                   versions that engines serve, or still need
                          run.msgpack                                  controller, metrics, clock: a RunState
                          manifest.json                                bytes and sha256 of every other file
    checkpoints/best      a link to the best one by eval.best, which is never removed: see arl.run.evaluation.scoreboard

copy (the trainer waits) ─► cut, one instant of the controller ─► in the background: write, checksum, sync, rename,
                                                                   remove the oldest

A checkpoint is complete or not there, because its name comes last. It is used only if its checksums hold.
"""

import asyncio
import hashlib
import shutil
from collections.abc import Callable, Collection, Coroutine
from pathlib import Path
from typing import Any, ParamSpec, Protocol

import msgspec
from msgspec import Struct

from arl.clock import in_thread, outer_deadline
from arl.config.recipe import Recipe
from arl.data import msgpack_arrays
from arl.engine.base import Engine
from arl.errors import DataError
from arl.launch.durable import sync_to_disk
from arl.metrics.recorder_state import RecorderState
from arl.metrics.run_files import METRICS_FILE, TRACE_FILE, TRAJECTORIES
from arl.metrics.spans import span
from arl.rollout.controller_state import ControllerState
from arl.run.evaluation.during import Evaluations, NoEvaluations
from arl.run.evaluation.scoreboard import BEST
from arl.train.base import Trainer
from arl.types import Accuracy, WeightUpdate

P = ParamSpec("P")

MANIFEST = "manifest.json"
STATE = "run.msgpack"
OLDER = "weights"  # directory of the versions before the checkpoint's
STEPS_BETWEEN = 20  # checkpoints, unless the recipe says otherwise


class RunState(Struct, frozen=True):
    """Hold everything that a run is at one instant, except the trainer's tensors."""

    recipe: dict[str, Any]  # as JSON
    inputs: str  # sha256 of problems and lags: see Plan.sha256
    time: float  # clock seconds
    before: Accuracy | None  # the evaluation before training
    controller: ControllerState
    recorder: RecorderState


class Cut(Protocol):
    """Take the state of the whole run at one instant."""

    def __call__(self, state: ControllerState) -> RunState:
        """Return the state of the run, given the controller's."""

    def settle(self) -> None:
        """Wait until the files that the last state counts on are complete. Called in a thread."""


class _File(Struct, frozen=True):
    bytes: int
    sha256: str


class RunCheckpoints:
    """Write the controller's checkpoints as `output` says, and remove old ones.

    Args:
        cut: takes the state of the whole run.
        in_use: the checkpoint that this run was resumed from. It is not removed, because engines that are restarted
            load their weights from it.
        evaluations: want checkpoints of their own, and need them until they are measured.
    """

    def __init__(
        self,
        directory: Path,
        recipe: Recipe,
        engine: Engine,
        trainer: Trainer,
        cut: Cut,
        in_use: Path | None = None,
        evaluations: Evaluations | None = None,
    ) -> None:
        self._directory = directory
        self._recipe = recipe
        self._engine = engine
        self._trainer = trainer
        self._cut = cut
        self._in_use = in_use
        self._evaluations = evaluations or NoEvaluations()
        self._idle = asyncio.Event()
        self._idle.set()

    def due(self, version: int) -> bool:
        """See Checkpoints."""
        return version == next_checkpoint(self._recipe, version - 1) or self._evaluations.due(version)

    async def copy(self, version: int) -> None:
        """See Checkpoints. Waits until the previous checkpoint is written, because only one is written at a time."""
        await self._idle.wait()
        self._idle.clear()
        with span("checkpoints", f"copy of version {version}"):
            await self._copy(version)

    async def _copy(self, version: int) -> None:
        for older in self._older(version):
            update = await self._trainer.weights(older)
            assert update.version == older, f"version {older} is served, and no longer published"
            await self._off_the_loop(_copy_model, update, self._partial(version) / OLDER / f"v{older}")
        await self._trainer.save(self._partial(version))

    def _older(self, version: int) -> range:
        """List the older versions that the checkpoint must hold, because nothing could compute them again.

        With an exact lag these are all that engines serve or have yet to serve. In virtual time it is the one that they
        serve, so that a resumed run does not serve fresher weights than the uninterrupted one. On the wall clock
        engines begin with the checkpoint's own version.
        """
        served = min(self._engine.loaded_version, version)
        if self._recipe.rollout.lag is not None:
            return range(served, version)
        if self._recipe.world_traits.restarts_at_checkpoints:
            return range(served, min(served + 1, version))
        return range(0)

    def write(self, state: ControllerState) -> Coroutine[Any, Any, None]:
        """See Checkpoints."""
        return self._write(self._cut(state))

    async def _write(self, state: RunState) -> None:
        version = state.controller.version
        what = f"writing the checkpoint of version {version}"
        with span("checkpoints", what):
            async with outer_deadline(self._recipe.deadlines.step, "controller", what):
                await self._write_files(state)
        self._idle.set()

    async def _write_files(self, state: RunState) -> None:
        version = state.controller.version
        await self._trainer.saved()
        await self._off_the_loop(self._cut.settle)
        final = self._directory / f"step_{version}"
        await self._off_the_loop(_write_state, self._partial(version), final, state)
        is_last = self._recipe.train.is_done(version, state.controller.tokens_trained)
        self._evaluations.saved(version, is_last)
        await self.prune()

    async def prune(self) -> None:
        """See Checkpoints."""
        needed = {f"step_{version}" for version in self._evaluations.waiting}
        await self._off_the_loop(self._remove_old, needed)

    def _remove_old(self, needed: Collection[str] = ()) -> None:
        """Remove all but the newest, the best, the one in use, and those whose names are `needed`."""
        kept = self._recipe.output.keep_checkpoints
        by_age = sorted(_checkpoints(self._directory), key=_step)
        best = (self._directory / BEST).resolve()
        for checkpoint in by_age[:-kept]:
            is_needed = checkpoint.name in needed or checkpoint == self._in_use or checkpoint.resolve() == best
            if not is_needed:
                removed = checkpoint.with_name(f".{checkpoint.name}.removed")
                checkpoint.rename(removed)  # first, so that a kill in between leaves no checkpoint with a part missing
                shutil.rmtree(removed)

    async def _off_the_loop(self, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run `work` in a thread; in virtual time at once, because threads have no place there."""
        if self._recipe.world_traits.virtual_time:
            work(*args, **kwargs)
        else:
            await in_thread(work, *args, **kwargs)

    def _partial(self, version: int) -> Path:
        return self._directory / f".step_{version}.partial"


def next_checkpoint(recipe: Recipe, version: int) -> int:
    """Return the first version after `version` that is saved."""
    every = steps_between_checkpoints(recipe)
    if every == 0:
        return recipe.train.steps
    next_multiple = (version // every + 1) * every
    return min(recipe.train.steps, next_multiple)


def steps_between_checkpoints(recipe: Recipe) -> int:
    """Return the interval that the recipe asks for; 0: only the last step is saved."""
    if recipe.output.checkpoint_every is not None:
        return recipe.output.checkpoint_every
    if recipe.world_traits.restarts_at_checkpoints:
        return 0
    return STEPS_BETWEEN


def older_versions(checkpoint: Path, served: int) -> dict[int, str]:
    """Map each version that was saved beside `checkpoint`, from `served` on, to the directory of its weights."""
    older = {}
    for path in (checkpoint / OLDER).glob("v*"):
        version = int(path.name.removeprefix("v"))
        if version >= served:
            older[version] = str(path)
    return older


def _copy_model(update: WeightUpdate, target: Path) -> None:
    """Copy what an engine loads to `target`, and nothing else that a checkpoint holds."""
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
    counted_on = [
        run / METRICS_FILE,
        run / TRACE_FILE,
        *_files(run / TRAJECTORIES),
        run / TRAJECTORIES,
    ]
    for path in counted_on:  # what the state counts on must be as durable as itself
        if path.exists():
            sync_to_disk(path)
    seal(partial, final)


def seal(partial: Path, final: Path) -> None:
    """Turn `partial` into the checkpoint `final`: write checksums, sync everything to disk, then rename."""
    files = {str(file.relative_to(partial)): _sum(file) for file in _files(partial)}
    manifest = msgspec.json.format(msgspec.json.encode(files))
    (partial / MANIFEST).write_bytes(manifest)
    for path in [*partial.rglob("*"), partial]:
        sync_to_disk(path)
    partial.rename(final)
    for path in (final.parent, final.parent.parent):
        sync_to_disk(path)


def verify(checkpoint: Path) -> None:
    """Check the size and the sha256 of every file of `checkpoint`.

    Raises:
        DataError: a file is missing, torn or altered; names it.
    """
    try:
        files = msgspec.json.decode((checkpoint / MANIFEST).read_bytes(), type=dict[str, _File])
    except (OSError, msgspec.DecodeError) as error:
        raise DataError(f"checkpoint {checkpoint}: no {MANIFEST} that can be read ({error})") from error
    has_tensors = all(_has_tensors(files, stem) for stem in ("model", "optimizer"))
    if not has_tensors or not {STATE, "config.json"} <= files.keys():
        raise DataError(f"checkpoint {checkpoint}: {MANIFEST} does not name all of its files")
    for name, expected in files.items():
        try:
            found = _sum(checkpoint / name)
        except OSError as error:
            raise DataError(f"checkpoint {checkpoint}: {name} cannot be read ({error.strerror})") from error
        if found.bytes != expected.bytes:
            raise DataError(f"checkpoint {checkpoint}: {name} is torn: {found.bytes} of {expected.bytes} bytes")
        if found.sha256 != expected.sha256:
            raise DataError(f"checkpoint {checkpoint}: {name} is corrupt: its sha256 is not that of {MANIFEST}")


def _has_tensors(files: Collection[str], stem: str) -> bool:
    """Return whether `files` has STEM.safetensors, or one of the many files of a large model or of several ranks."""
    return any(name.startswith(stem) and name.endswith(".safetensors") for name in files)


def newest_intact(directory: Path, note: Callable[[str], None]) -> tuple[Path, RunState]:
    """Find the newest intact checkpoint in `directory` and read its state; `note` is called for each damaged one.

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
    """Remove what was half written or half removed; rename what is newer than `checkpoint` to refused_step_N."""
    for pattern in (".step_*.partial", ".step_*.removed"):
        for rest in checkpoint.parent.glob(pattern):
            shutil.rmtree(rest)
    for refused in _checkpoints(checkpoint.parent):
        if _step(refused) > _step(checkpoint):
            aside = refused.with_name(f"refused_{refused.name}")
            shutil.rmtree(aside, ignore_errors=True)
            refused.rename(aside)
    best = checkpoint.parent / BEST
    if best.is_symlink() and not best.exists():
        best.unlink()


def _refuse_lost_files(run: Path, state: RunState, checkpoint: Path) -> None:
    """Check that the files of the run reach as far as the checkpoint.

    Raises:
        DataError: one is shorter.
    """
    recorder = state.recorder
    least_bytes = {
        run / METRICS_FILE: recorder.metrics_bytes,
        run / TRACE_FILE: recorder.trace.overview_bytes,
    }
    for number in range(recorder.num_files):
        file = run / TRAJECTORIES / f"{number:06d}.parquet"
        least_bytes[file] = 1
    for file, least in least_bytes.items():
        found = file.stat().st_size if file.exists() else 0
        if found < least:
            raise DataError(f"checkpoint {checkpoint}: {file} has {found} bytes, and it counts on {least}")


def load_state(checkpoint: Path) -> RunState:
    """Read the state of `checkpoint`.

    Raises:
        DataError: another version of arl wrote it.
    """
    encoded = (checkpoint / STATE).read_bytes()
    try:
        state: RunState = msgpack_arrays.decoder(RunState).decode(encoded)
    except msgspec.MsgspecError as error:
        raise DataError(f"checkpoint {checkpoint}: {STATE} is not of this version of arl ({error})") from error
    return state


def _checkpoints(directory: Path) -> list[Path]:
    return [path for path in directory.glob("step_*") if path.name.removeprefix("step_").isdecimal()]


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step_"))


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _sum(file: Path) -> _File:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
        return _File(bytes=stream.tell(), sha256=digest.hexdigest())
