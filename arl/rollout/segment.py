"""Gather what a controller works with; arl.run.world.Parts adds what the rest of a run needs."""

from dataclasses import dataclass

from arl.config.recipe import Deadlines, Rollout
from arl.data.problems import ProblemOrder
from arl.engine.base import Engine
from arl.rollout.base import Admission, Groups, Lease
from arl.rollout.filters import Filter
from arl.rollout.gate_meter import GateMeter
from arl.rollout.lease import Drain
from arl.rollout.tail_rounds import TailRounds
from arl.train.base import Trainer


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
