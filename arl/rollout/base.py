"""Gather what a controller works with (Segment), and define its seams beside engine and trainer.

Without interruptions all episodes end before weights are loaded, so that none spans two versions:

    episodes ─► Drain.episode(): waits while the drain is closed ─► env runs ─► …
    Drain.close(): no episode begins, and it returns when all have ended ─► load ─► reopen()
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from arl.clock import outer_deadline
from arl.config.recipe import Deadlines, Rollout
from arl.data.problem_order import ProblemOrder
from arl.engine.base import Engine
from arl.rollout.controller_state import ControllerState
from arl.rollout.env import Session
from arl.rollout.filters import Filter
from arl.rollout.ledger import GateMeter, GroupMeter
from arl.rollout.problem_queue import TailRounds
from arl.rollout.staleness import Admission
from arl.train.base import Trainer
from arl.types import Batch, Problem, StepResult, StepWaits, SwapReport, Trajectory, TrajectoryGroup, Turn


class Groups(Protocol):
    """Open and run the episodes of groups; problems become training data here. See arl.rollout.episodes.Episodes."""

    meter: GroupMeter

    def open(self, name: str, problem: Problem, journals: Sequence[tuple[Turn, ...]] = ()) -> list[Session]:
        """Open the sessions of group `name`; with `journals`, they continue where a resumed run was."""

    async def run(self, problem: Problem, sessions: Sequence[Session]) -> tuple[Trajectory, ...]:
        """Run the episodes and return their scored trajectories, in the order of `sessions`."""


class Observer(Protocol):
    """Receive the events of a run as they happen, without blocking. See arl.metrics.recorder.Recorder."""

    def group_finished(self, group: TrajectoryGroup) -> None:
        """Note that a group is scored and waits in the buffer."""

    def group_lost(self, group: TrajectoryGroup, fate: str, cause: BaseException | None) -> None:
        """Note that a group will not be trained. Fates are those of arl.types, or a replay's own."""

    def swapped(self, report: SwapReport) -> None:
        """Note that the engines have loaded a version."""

    def step_finished(self, batch: Batch, result: StepResult, waits: StepWaits) -> None:
        """Note that the trainer has finished a step, after it had waited."""


class Checkpoints(Protocol):
    """Decide when a checkpoint is due, and write it."""

    def due(self, version: int) -> bool:
        """Return whether a checkpoint of this version is wanted."""

    async def copy(self, version: int) -> None:
        """Copy the trainer's state, and return when the trainer may go on; nothing is written yet."""

    def write(self, state: ControllerState) -> Coroutine[Any, Any, None]:
        """Take the state of this instant, and return the coroutine that writes the checkpoint while the run goes on."""

    async def prune(self) -> None:
        """Remove the checkpoints that nothing needs any more."""


class Drain:
    """Count the episodes whose env runs, and keep new ones waiting while it is closed. Several may close it."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._running = 0

    @contextlib.asynccontextmanager
    async def episode(self) -> AsyncIterator[None]:
        """Run one episode in this context; first waits while the drain is closed."""
        while not self._open.is_set():  # it may be closed again before this task runs
            await self._open.wait()
        self._running += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._empty.set()

    async def close(self, seconds: float) -> None:
        """Let no episode begin, and wait until all have ended; `reopen` undoes it.

        Raises:
            DeadlineError: that took longer than `seconds`.
        """
        self._open.clear()

        def what() -> str:
            return f"{self._running} episodes to end before weights are loaded"

        async with outer_deadline(seconds, "publisher", what):
            await self._empty.wait()

    def reopen(self) -> None:
        """Let the episodes begin that wait."""
        self._open.set()


class DeviceLease:
    """Lend the devices of mode collocated: the engines sleep from the start of a step until its weights are loaded.

    Args:
        drain: is closed before the engines sleep, and whoever loads the weights reopens it; None: episodes are
            interrupted.
        seconds: deadline of the open episodes.
    """

    def __init__(self, engine: Engine, drain: Drain | None, seconds: float) -> None:
        self._engine = engine
        self._drain = drain
        self._seconds = seconds
        self._turn = asyncio.Lock()

    async def acquire(self) -> None:
        """Wait for the previous step's weights to be loaded, then pause the engines."""
        await self._turn.acquire()
        if self._drain is not None:
            await self._drain.close(self._seconds)
        await self._engine.pause()

    async def release(self) -> None:
        """Let the engines generate again."""
        await self._engine.resume()
        self._turn.release()


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Hold what an opened world gives to a controller."""

    rollout: Rollout
    deadlines: Deadlines
    steps: int
    """Versions of the whole run. Nothing is generated that no step will train."""
    tokens: int | None = None
    """Trained tokens after which the run ends before its last step; None: it has all of its steps."""
    engine: Engine
    trainer: Trainer
    admission: Admission
    problems: ProblemOrder
    groups: Groups
    keep: Filter
    """Decides which finished groups are trained."""
    lease: DeviceLease | None
    """Of mode collocated; None: engines and trainer have devices of their own."""
    gate_meter: GateMeter
    """Also counts the open requests of `groups`."""
    drain: Drain | None = None
    """Is closed before weights are loaded; None: loads interrupt episodes."""
    tail: TailRounds | None = None
    """The rounds of `rollout.tail_batching`, which `admission` follows; None: without it."""
