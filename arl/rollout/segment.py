"""Gather what one segment of a run is made of, for arl.rollout.controller."""

from dataclasses import dataclass

from arl.config.recipe import Deadlines, Rollout
from arl.data.problems import ProblemOrder
from arl.engine.base import Engine
from arl.rollout.base import Admission, Checkpoints, Drain, Groups, Lease, Observer
from arl.rollout.controller_state import ControllerState
from arl.rollout.filters import Filter
from arl.rollout.ledger import GateMeter
from arl.rollout.problem_queue import TailRounds
from arl.train.base import Trainer


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Hold all that a controller works with, from the start of a run, or a checkpoint, until version `until`."""

    rollout: Rollout
    deadlines: Deadlines
    steps: int
    """Versions of the whole run. Nothing is generated that no step will train."""
    tokens: int | None = None
    """Trained tokens after which the run ends before its last step; None: it has all of its steps."""
    until: int
    """The version this segment ends with: the last step's, or one whose checkpoint begins the next segment."""
    engine: Engine
    trainer: Trainer
    admission: Admission
    problems: ProblemOrder
    groups: Groups
    keep: Filter
    """Decides which finished groups are trained."""
    lease: Lease
    observer: Observer
    checkpoints: Checkpoints
    gate_meter: GateMeter
    """Also counts the open requests of `groups`."""
    drain: Drain | None = None
    """Is closed before weights are loaded; None: loads interrupt episodes."""
    tail: TailRounds | None = None
    """The rounds of `rollout.tail_batching`, which `admission` follows; None: without it."""
    restored: ControllerState | None = None
    """The checkpoint to go on from."""
