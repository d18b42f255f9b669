"""Write, verify, keep and find the checkpoints of a run.

    checkpoints/step_N/                   read by
        model.safetensors, config.json,   ranks, engines, the controller, `arl eval`, `from_pretrained`
        tokenizer…
        optimizer.safetensors             ranks: AdamW's state; of several ranks each writes its own share of both
        critic/                           ranks: the same of a critic; its head is (1, width)
        weights/vM                        engines: older versions, with rollout.lag and in virtual time only
        run.msgpack                       arl.run.resume, controller, recorder: a RunState
        manifest.json                     arl.run.checkpoint: sha256 of every other file
    checkpoints/best      a link to the best one, which is never removed: see arl.run.evaluation.scoreboard

copy (the trainer waits) ─► snapshot, one instant of the controller ─► in the background: write, checksum, sync,
                                                                        rename, remove the oldest
resume: newest ─► files of its manifest ─► run.msgpack ─► files of the run, up to the checkpoint ─► used
          ▲                     a damage anywhere is kept for the message              │
          └────────────────────────────── the one before ◄─────────────────────────────┘

A checkpoint is complete or not there, because its name comes last. It is used only if its checksums hold.
"""

import asyncio
import hashlib
import os
import shutil
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec

import msgspec
from msgspec import Struct
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME

from arl.clock import in_thread, now, outer_deadline
from arl.config.recipe import Recipe
from arl.data import msgpack_arrays
from arl.engine.base import Engine
from arl.errors import DataError, InputError
from arl.files import remove_any, sync_to_disk, writing
from arl.metrics.recorder import Recorder, RecorderState
from arl.metrics.run_files import METRICS_FILE, TRACE_FILE, TRAJECTORIES
from arl.metrics.spans import span
from arl.metrics.trajectory_files import file_name
from arl.models.model_files import stored_tensors
from arl.rollout.controller_state import ControllerState
from arl.run.evaluation.during import Evaluations
from arl.run.evaluation.scoreboard import BEST, CHECKPOINTS
from arl.run.rewards import reward_sha256
from arl.train.base import Trainer
from arl.types import Accuracy, WeightUpdate

P = ParamSpec("P")

STEPS_BETWEEN = 20  # checkpoints, unless the recipe says otherwise
STATE = "run.msgpack"
MANIFEST = "manifest.json"  # {"config.json": sha256, "weights/v3/model.safetensors": sha256, …}
OLDER = "weights"  # directory of the versions before the checkpoint's
STEP = "step_"  # begins the name of a checkpoint


class RunState(Struct, frozen=True):
    """Hold everything that a run is at one instant, except the trainer's tensors."""

    recipe: dict[str, Any]  # as JSON
    inputs: str  # sha256 of problems and lags: see Plan.sha256
    time: float  # clock seconds
    before: tuple[Accuracy, ...]  # the evaluation before training: see Parts.evaluate
    controller: ControllerState
    recorder: RecorderState
    reward: str = ""  # sha256 of the source of the reward function


def load_state(checkpoint: Path) -> RunState:
    """Read the state of `checkpoint`.

    Raises:
        DataError: another version of arl wrote it.
    """
    try:
        state: RunState = msgpack_arrays.decoder(RunState).decode((checkpoint / STATE).read_bytes())
        return state
    except msgspec.DecodeError as error:
        raise DataError(f"{checkpoint}: {STATE} is not of this version of arl ({error})") from error


def older_versions(checkpoint: Path, state: RunState) -> dict[int, str]:
    """Map each older version that engines serve or need to the directory of its weights."""
    found = {int(path.name.removeprefix("v")): str(path) for path in (checkpoint / OLDER).glob("v*")}
    loaded = state.controller.loaded_version  # engines may have swapped while they were copied
    return {version: path for version, path in found.items() if version >= loaded}


@dataclass(kw_only=True)
class RunCheckpoints:
    """Write the controller's checkpoints as `output` says, and remove old ones."""

    directory: Path
    recipe: Recipe
    engine: Engine
    trainer: Trainer
    recorder: Recorder
    inputs: str = ""
    """sha256 of problems and lags: see Plan.sha256."""
    before: Sequence[Accuracy] = ()
    """The evaluation before training."""
    in_use: Path | None = None
    """What this run was resumed from. It is kept, because restarted engines load their weights from it."""
    evaluations: Evaluations = field(default_factory=Evaluations)
    """Want checkpoints of their own, and need them until they are measured."""
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._reward = reward_sha256(self.recipe)  # now: the file may change while the run goes on with what it was

    def due(self, version: int) -> bool:
        """See Checkpoints."""
        return version == next_checkpoint(self.recipe, version - 1) or self.evaluations.due(version)

    async def copy(self, version: int) -> None:
        """See Checkpoints. Waits until the previous checkpoint is written, because only one is written at a time."""
        await self._writing.acquire()
        partial = self._partial(version)
        with span("checkpoints", f"copy of version {version}"):
            for older in self._older(version):
                update = await self.trainer.weights(older)
                assert update.version == older, f"version {older} is served, and no longer published"
                await self._off_the_loop(_copy_model, update, partial / OLDER / f"v{older}")
            await self.trainer.save(partial)

    def _older(self, version: int) -> range:
        """List the older versions that the checkpoint must hold, because nothing could compute them again.

        With an exact lag these are all that engines serve or have yet to serve. In virtual time it is the one that they
        serve, so that a resumed run does not serve fresher weights than the uninterrupted one. On the wall clock
        engines begin with the checkpoint's own version.
        """
        served = min(self.engine.loaded_version, version)
        if self.recipe.rollout.lag is not None:
            return range(served, version)
        if self.recipe.world_traits.restarts_at_checkpoints:
            return range(served, min(served + 1, version))
        return range(0)

    def write(self, state: ControllerState) -> Coroutine[Any, Any, None]:
        """See Checkpoints. The files that the state counts on are complete after `recorder.settle`."""
        run = RunState(
            recipe=self.recipe.model_dump(mode="json"),
            inputs=self.inputs,
            time=now(),
            before=tuple(self.before),
            controller=state,
            recorder=self.recorder.snapshot(),
            reward=self._reward,
        )
        return self._write(run)

    async def _write(self, state: RunState) -> None:
        version = state.controller.version
        what = f"writing the checkpoint of version {version}"
        with span("checkpoints", what):
            async with outer_deadline(self.recipe.deadlines.step, "controller", what):
                await self.trainer.saved()
                await self._off_the_loop(self.recorder.settle)
                await self._off_the_loop(self._commit, state)
                is_last = self.recipe.train.is_done(version, state.controller.tokens_trained)
                self.evaluations.saved(version, is_last)
                await self.prune()
        self._writing.release()

    def _commit(self, state: RunState) -> None:
        """Write `state` beside the trainer's files, sync everything that it counts on, and rename last."""
        partial = self._partial(state.controller.version)
        final = self.directory / f"{STEP}{state.controller.version}"
        run = self.directory.parent
        with writing(partial / STATE):
            (partial / STATE).write_bytes(msgpack_arrays.encoder().encode(state))
            (partial / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(_sums(partial))))
            counted_on = [run / name for name in _file_sizes(state.recorder)]
            for path in [*counted_on, *run.glob(TRAJECTORIES), *partial.rglob("*"), partial]:
                sync_to_disk(path)
            partial.rename(final)
            for path in (final.parent, final.parent.parent):
                sync_to_disk(path)

    async def prune(self) -> None:
        """See Checkpoints."""
        await self._off_the_loop(self._remove_old)

    def _remove_old(self) -> None:
        """Remove all but the newest, the best, the one in use, and those that are yet to be evaluated."""
        names = {os.path.basename(os.path.realpath(self.directory / BEST))}
        names |= {f"{STEP}{version}" for version in self.evaluations.waiting}
        for checkpoint in checkpoints_in(self.directory)[: -self.recipe.output.keep_checkpoints]:
            if checkpoint.name not in names and checkpoint != self.in_use:
                removed = checkpoint.with_name(f".{checkpoint.name}.removed")
                checkpoint.rename(removed)  # first, so that a kill in between leaves no checkpoint with a part missing
                remove_any(removed)

    async def _off_the_loop(self, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run `work` in a thread; in virtual time at once, because threads have no place there."""
        if self.recipe.world_traits.virtual_time:
            work(*args, **kwargs)
        else:
            await in_thread(work, *args, **kwargs)

    def _partial(self, version: int) -> Path:
        return self.directory / f".{STEP}{version}.partial"


def next_checkpoint(recipe: Recipe, version: int) -> int:
    """Return the first version after `version` that is saved."""
    every = recipe.output.checkpoint_every
    if every is None:
        every = 0 if recipe.world_traits.restarts_at_checkpoints else STEPS_BETWEEN
    last = recipe.train.steps
    return min(last, (version // every + 1) * every) if every else last


def _copy_model(update: WeightUpdate, target: Path) -> None:
    """Copy what an engine loads to `target`, and nothing else that a checkpoint holds."""
    target.mkdir(parents=True)
    source = Path(update.path)
    weights = stored_tensors(source) if update.state is None else {}
    files = {tensor.file for tensor in weights.values()}
    for file in [source / CONFIG_NAME, *source.glob(SAFE_WEIGHTS_INDEX_NAME), *files]:
        shutil.copy2(file, target)
    if update.state is not None:
        from arl.sync.targets import write_state  # imports torch, as whoever holds the state has

        write_state(target, update.state)


# ---- names and files


def _file_sizes(recorder: RecorderState) -> dict[str, int]:
    """Map each file of the run that a state counts on to the bytes that it must have at least."""
    grown = {METRICS_FILE: recorder.metrics_bytes, TRACE_FILE: recorder.trace_bytes}
    sizes = {f"{TRAJECTORIES}/{file_name(number)}": 1 for number in range(recorder.num_files)}
    return sizes | {name: size for name, size in grown.items() if size > 0}


def checkpoints_in(directory: Path) -> list[Path]:
    """List the checkpoints in a directory, oldest first; none if it is not there."""
    found = [path for path in directory.glob(f"{STEP}*") if path.name.removeprefix(STEP).isdecimal()]
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    """Return the version in the name of a checkpoint."""
    return int(checkpoint.name.removeprefix(STEP))


def find_model(path: Path, step: str | None) -> Path:
    """Return the directory of a run's checkpoint, or `path` itself, which then is a model's.

    Args:
        step: number of the checkpoint, or best; None: the newest.

    Raises:
        InputError: there is none.
    """
    saved = checkpoints_in(path / CHECKPOINTS)
    found = saved[-1] if saved else path
    if step is not None:
        found = path / CHECKPOINTS / (step if step == BEST else f"{STEP}{step}")
    if not (found / CONFIG_NAME).exists():
        steps = ", ".join(str(step_of(checkpoint)) for checkpoint in saved) or "none"
        raise InputError(f"{found}: there is no model; checkpoints of {path}: {steps}")
    return found.resolve()


def _sums(directory: Path) -> dict[str, str]:
    """Return the sha256 of every file below a directory but its manifest."""
    sums = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and name != MANIFEST:
            with path.open("rb") as file:
                sums[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return sums


# ---- verify


def newest_intact(directory: Path, note: Callable[[str], None]) -> tuple[Path, RunState]:
    """Find the newest intact checkpoint in `directory`, and its state; `note` is called for each damaged one.

    Raises:
        DataError: there is none; names the damage of each.
    """
    damages = []
    for checkpoint in reversed(checkpoints_in(directory)):
        try:
            return checkpoint, _verify(checkpoint)
        except DataError as error:
            damages.append(f"checkpoint {error}")
            note(damages[-1])
    message = f"{directory}: no intact checkpoint to resume from; start the run anew, without --resume"
    raise DataError("\n".join([message, *damages]))


def _verify(checkpoint: Path) -> RunState:
    """Check every file of a checkpoint, and that its run has the files that it goes on with; return its state.

    Raises:
        DataError: a file is missing, torn or altered, or the state is of another version of arl; names it.
    """
    try:
        listed = msgspec.json.decode((checkpoint / MANIFEST).read_bytes(), type=dict[str, str])
    except (FileNotFoundError, ValueError) as error:
        raise DataError(f"{checkpoint}: {MANIFEST} cannot be read ({error})") from error
    there = _sums(checkpoint)
    for name, expected in listed.items():
        if there.get(name) != expected:
            raise DataError(f"{checkpoint}: {name} is missing, torn or altered: its sha256 is not that of {MANIFEST}")
    state = load_state(checkpoint)
    for name, size in _file_sizes(state.recorder).items():
        file = checkpoint.parent.parent / name
        if not file.is_file() or file.stat().st_size < size:
            raise DataError(f"{checkpoint}: {file} is missing, or shorter than the {size} bytes it counts on")
    return state


def clear_after(checkpoint: Path) -> None:
    """Remove what was half written or half removed; keep what is newer than `checkpoint` as refused_step_N."""
    directory = checkpoint.parent
    for rest in [*directory.glob(".step_*.partial"), *directory.glob(".step_*.removed")]:
        remove_any(rest)
    for refused in checkpoints_in(directory):
        if step_of(refused) > step_of(checkpoint):
            aside = directory / f"refused_{refused.name}"
            remove_any(aside)
            refused.rename(aside)
    best = directory / BEST
    if not best.exists():  # it was one of these
        best.unlink(missing_ok=True)
