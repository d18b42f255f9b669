"""Gather what a controller works with (Segment), and define its seams beside engine and trainer.

Without interruptions all episodes end before weights are loaded, so that none spans two versions:

    episodes ─► Drain.episode(): waits while the drain is closed ─► env runs ─► …
    Drain.close(): no episode begins, and it returns when all have ended ─► load ─► reopen()
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from arl.clock import outer_deadline
from arl.config.recipe import Deadlines, Rollout
from arl.data.problems import ProblemOrder
from arl.engine.base import Engine
from arl.rollout.controller_state import ControllerState
from arl.rollout.env import Session
from arl.rollout.filters import Filter
from arl.rollout.ledger import GateMeter
from arl.rollout.problem_queue import TailRounds
from arl.train.base import Trainer
from arl.types import Batch, Problem, StepResult, StepWaits, SwapReport, Trajectory, TrajectoryGroup, Turn


class Groups(Protocol):
    """Open and run the episodes of groups. See arl.rollout.episodes.Episodes."""

    def open(self, name: str, problem: Problem, journals: Sequence[tuple[Turn, ...]] = ()) -> list[Session]:
        """Open the sessions of group `name`; with `journals`, they continue where a resumed run was."""

    async def run(self, problem: Problem, sessions: Sequence[Session]) -> tuple[Trajectory, ...]:
        """Run the episodes and return their scored trajectories, in the order of `sessions`."""


class Lease(Protocol):
    """Lend the device. Disaggregated: both sides own theirs. Collocated: engines sleep from a step until its swap."""

    async def acquire(self) -> None:
        """Wait until the trainer may use the device."""

    async def release(self) -> None:
        """Give the device back to the engines."""


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


class Admission(Protocol):
    """Decide what may start, and what must be trained when: see arl.rollout.staleness and arl.rollout.exact_lag."""

    num_trained: int

    @property
    def num_outstanding(self) -> int:
        """Return the number of groups that were admitted, and are neither trained nor lost."""

    def is_open(self, loaded_version: int) -> bool:
        """Return whether one more group may start while the engines serve `loaded_version`."""

    def admit(self, loaded_version: int) -> int:
        """Count one group in, and return its deadline: the last version that may train it."""

    def restore(self, num_trained: int, loaded_version: int, outstanding: Sequence[tuple[int, int]]) -> None:
        """Go on from a checkpoint.

        Args:
            num_trained: groups so far.
            loaded_version: what the engines go on with.
            outstanding: (dispatch_version, deadline) of each outstanding group.
        """

    def release(self, deadline: int) -> None:
        """Give back the number of a group that failed, was rejected or dropped."""

    def train(self, deadline: int) -> None:
        """Count a group that a step consumes."""

    def first_blocking(self, version: int, chosen: Counter[int]) -> int | None:
        """Find why step `version` may not consume `chosen` (deadline -> groups).

        Returns:
            The deadline by which too many groups would remain; None: the step may start.
        """

    def next_version(self, loaded_version: int, version: int, running: int) -> int | None:
        """Choose what engines at `loaded_version` load next; None: nothing yet.

        Args:
            version: the trainer's.
            running: groups whose episodes run.
        """


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


class NoLease:
    """Implement Lease for mode disaggregated: both sides have devices of their own, so nobody waits."""

    async def acquire(self) -> None:
        """Return at once."""

    async def release(self) -> None:
        """Return at once."""


class SharedDeviceLease:
    """Implement Lease for mode collocated: the engines sleep from the start of a step until its weights are loaded."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._turn = asyncio.Lock()

    async def acquire(self) -> None:
        """Wait for the previous step's weights to be loaded, then pause the engines."""
        await self._turn.acquire()
        await self._engine.pause()

    async def release(self) -> None:
        """Let the engines generate again."""
        await self._engine.resume()
        self._turn.release()


class DrainedDeviceLease(SharedDeviceLease):
    """Implement Lease for mode collocated without interruptions: the trainer's turn begins when no episode generates.

    Whoever loads the weights reopens the drain before the turn ends.

    Args:
        seconds: deadline of the open episodes.
    """

    def __init__(self, engine: Engine, drain: Drain, seconds: float) -> None:
        super().__init__(engine)
        self._drain = drain
        self._seconds = seconds

    async def acquire(self) -> None:
        """Wait for the open episodes as well; see SharedDeviceLease."""
        await self._turn.acquire()
        await self._drain.close(self._seconds)
        await self._engine.pause()


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
    lease: Lease
    gate_meter: GateMeter
    """Also counts the open requests of `groups`."""
    drain: Drain | None = None
    """Is closed before weights are loaded; None: loads interrupt episodes."""
    tail: TailRounds | None = None
    """The rounds of `rollout.tail_batching`, which `admission` follows; None: without it."""
