"""Write, verify, keep and find the checkpoints of a run.

    checkpoints/step_N/   model.safetensors, config.json, tokenizer…   what `from_pretrained` reads
                          optimizer.safetensors                        AdamW's moments; with several ranks both are
                                                                       one file of each: arl.train.training_state
                          weights/vM                                   versions that engines serve, or still need
                          run.msgpack                                  controller, metrics, clock: a RunState
                          manifest.json                                bytes and sha256 of every other file
    checkpoints/best      a link to the best one, which is never removed: see arl.run.evaluation.scoreboard

copy (the trainer waits) ─► snapshot, one instant of the controller ─► in the background: write, checksum, sync,
                                                                        rename, remove the oldest

A checkpoint is complete or not there, because its name comes last. It is used only if its checksums hold, see
arl.run.intact.
"""

import asyncio
import os
import shutil
from collections.abc import Callable, Collection, Coroutine
from pathlib import Path
from typing import Any, ParamSpec, Protocol

from arl.clock import in_thread, outer_deadline
from arl.config.recipe import Recipe
from arl.data import msgpack_arrays
from arl.engine.base import Engine
from arl.files import remove_any, sync_to_disk, writing
from arl.metrics.run_files import TRAJECTORIES
from arl.metrics.spans import span
from arl.rollout.controller_state import ControllerState
from arl.run.checkpoint_state import OLDER, STATE, STEP, RunState, checkpoints_in, complete_files, growing_files
from arl.run.evaluation.during import Evaluations
from arl.run.evaluation.scoreboard import BEST
from arl.run.intact import write_manifest
from arl.train.base import Trainer
from arl.types import WeightUpdate

P = ParamSpec("P")

STEPS_BETWEEN = 20  # checkpoints, unless the recipe says otherwise


class RunSnapshot(Protocol):
    """Take the state of the whole run at one instant."""

    def __call__(self, state: ControllerState) -> RunState:
        """Return the state of the run, given the controller's."""

    def settle(self) -> None:
        """Wait until the files that the last state counts on are complete. Called in a thread."""


class RunCheckpoints:
    """Write the controller's checkpoints as `output` says, and remove old ones.

    Args:
        snapshot: takes the state of the whole run.
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
        snapshot: RunSnapshot,
        in_use: Path | None = None,
        evaluations: Evaluations | None = None,
    ) -> None:
        self._directory = directory
        self._recipe = recipe
        self._engine = engine
        self._trainer = trainer
        self._snapshot = snapshot
        self._in_use = in_use
        self._evaluations = evaluations or Evaluations()
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
        return self._write(self._snapshot(state))

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
        await self._off_the_loop(self._snapshot.settle)
        await self._off_the_loop(self._commit, state)
        is_last = self._recipe.train.is_done(version, state.controller.tokens_trained)
        self._evaluations.saved(version, is_last)
        await self.prune()

    def _commit(self, state: RunState) -> None:
        """Write `state` beside the trainer's files, and let both become a checkpoint."""
        version = state.controller.version
        partial = self._partial(version)
        final = self._directory / f"{STEP}{version}"
        run = self._directory.parent
        with writing(partial / STATE):
            (partial / STATE).write_bytes(msgpack_arrays.encoder().encode(state))
            for path in _unsynced(run, state):
                sync_to_disk(path)
            commit_checkpoint(partial, final)

    async def prune(self) -> None:
        """See Checkpoints."""
        needed = {f"step_{version}" for version in self._evaluations.waiting}
        await self._off_the_loop(self._remove_old, needed)

    def _remove_old(self, needed: Collection[str] = ()) -> None:
        """Remove all but the newest, the best, the one in use, and those whose names are `needed`."""
        kept = self._recipe.output.keep_checkpoints
        best = os.path.realpath(self._directory / BEST)  # a loop of links is no error to it
        for checkpoint in checkpoints_in(self._directory)[:-kept]:
            is_best = os.path.realpath(checkpoint) == best
            if not (is_best or checkpoint.name in needed or checkpoint == self._in_use):
                removed = checkpoint.with_name(f".{checkpoint.name}.removed")
                checkpoint.rename(removed)  # first, so that a kill in between leaves no checkpoint with a part missing
                remove_any(removed)

    async def _off_the_loop(self, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run `work` in a thread; in virtual time at once, because threads have no place there."""
        if self._recipe.world_traits.virtual_time:
            work(*args, **kwargs)
        else:
            await in_thread(work, *args, **kwargs)

    def _partial(self, version: int) -> Path:
        return self._directory / f".{STEP}{version}.partial"


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


def _copy_model(update: WeightUpdate, target: Path) -> None:
    """Copy what an engine loads to `target`, and nothing else that a checkpoint holds."""
    target.mkdir(parents=True)
    for file in Path(update.path).iterdir():
        if file.name == "config.json" or "model" in file.name:
            shutil.copy2(file, target)
    if update.state is not None:
        from arl.sync.targets import write_state  # imports torch, as whoever holds the state has

        write_state(target, update.state)


def _unsynced(run: Path, state: RunState) -> list[Path]:
    """List the files of the run that a state counts on, and their folder: they must be as durable as the state."""
    files = [run / name for name in (*growing_files(state.recorder), *complete_files(state.recorder))]
    if (run / TRAJECTORIES).is_dir():
        files.append(run / TRAJECTORIES)
    return files


def commit_checkpoint(partial: Path, final: Path) -> None:
    """Turn `partial` into the checkpoint `final`: write checksums, sync everything to disk, then rename."""
    write_manifest(partial)
    for path in [*sorted(partial.rglob("*")), partial]:
        sync_to_disk(path)
    partial.rename(final)
    for path in (final.parent, final.parent.parent):
        sync_to_disk(path)
