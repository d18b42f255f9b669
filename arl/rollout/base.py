"""The controller's seams beside engine and trainer: who runs groups, watches, lends the device, keeps checkpoints."""

from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from arl.rollout.controller_state import ControllerState
from arl.rollout.env import Session
from arl.types import Batch, Problem, StepResult, SwapReport, Trajectory, TrajectoryGroup, Turn


class Groups(Protocol):
    """See arl.rollout.episodes.Episodes."""

    def open(self, name: str, problem: Problem, journals: Sequence[tuple[Turn, ...]] = ()) -> list[Session]: ...

    async def run(self, problem: Problem, sessions: Sequence[Session]) -> tuple[Trajectory, ...]: ...


class Lease(Protocol):
    """Who holds the device. Disaggregated: nobody needs to. Collocated: engines sleep from a step until its swap."""

    async def acquire(self) -> None: ...

    async def release(self) -> None: ...


class Observer(Protocol):
    """What is told about the run, as it happens; it must not block."""

    def group_finished(self, group: TrajectoryGroup) -> None: ...

    def group_lost(self, group: TrajectoryGroup, fate: str, cause: BaseException | None) -> None: ...

    def swapped(self, report: SwapReport) -> None: ...

    def step_finished(self, batch: Batch, result: StepResult, waited: float) -> None: ...


class Checkpoints(Protocol):
    """Where the run is saved, and when."""

    def due(self, version: int) -> bool: ...

    async def copy(self, version: int) -> None:
        """Return when the trainer may go on: its state is copied, not yet written."""

    def write(self, state: ControllerState) -> Coroutine[Any, Any, None]:
        """Cut here; what it returns writes the checkpoint while the run goes on."""


class Admission(Protocol):
    """What may start, and what must be trained when: see arl.rollout.staleness and arl.rollout.exact_lag."""

    num_trained: int

    @property
    def num_outstanding(self) -> int: ...

    def is_open(self, loaded_version: int) -> bool:
        """May one more group start while the engines serve `loaded_version`?"""

    def admit(self, loaded_version: int) -> int:
        """Count one group in; returns its deadline, the last version that may train it."""

    def restore(self, num_trained: int, loaded_version: int, outstanding: Sequence[tuple[int, int]]) -> None:
        """Go on from a checkpoint with so many groups trained, and (dispatch_version, deadline) of each outstanding.

        Args:
            loaded_version: what the engines go on with.
        """

    def release(self, deadline: int) -> None:
        """A group failed, was rejected or dropped: its number is given back."""

    def train(self, deadline: int) -> None:
        """A group is consumed by a step."""

    def first_blocking(self, version: int, chosen: Counter[int]) -> int | None:
        """Step `version` may not consume `chosen` (deadline -> groups) because of groups due by this; None: it may."""

    def next_version(self, loaded_version: int, version: int, running: int) -> int | None:
        """What engines at `loaded_version` load next, `version` being the trainer's; None: nothing yet."""
