"""Count what becomes of every admitted group, where a run ends, and how long the engines had nothing to do.

admitted = trained + lost, by fate + in flight
"""

from collections import Counter
from dataclasses import dataclass, field

from arl.engine.meters import Stopwatch
from arl.types import Batch


@dataclass
class Ledger:
    """Count admitted groups: each is trained, lost with one fate (see arl.types), or still in flight."""

    admitted: int = 0  # groups so far: the group_id of the next one
    trained: int = 0
    lost: Counter[str] = field(default_factory=Counter)  # fate -> groups
    restarted_tokens: int = 0  # sampled by ended episodes that a resumed run began anew

    @property
    def in_flight(self) -> int:
        """Return the number of groups that are running, or finished and in the buffer."""
        return self.admitted - self.trained - self.lost.total()


class Horizon:
    """Count trained tokens, and end the run after `steps`, or with the step that reaches `tokens`.

    Args:
        steps: versions of the run, at most.
        tokens: loss tokens after which no further step starts; None: only `steps` counts.
    """

    def __init__(self, steps: int, tokens: int | None) -> None:
        self.steps = steps
        self._tokens = tokens
        self.num_tokens = 0  # trained so far

    def restore(self, version: int, num_tokens: int) -> None:
        """Go on from a checkpoint, which may be the last one."""
        self.num_tokens = num_tokens
        self._end_if_reached(version)

    def count(self, batch: Batch) -> None:
        """Count what a step is about to train. Its version is the last one if that is enough."""
        for group in batch.groups:
            self.num_tokens += sum(int(trajectory.loss_mask.sum()) for trajectory in group.trajectories)
        self._end_if_reached(batch.version + 1)

    def _end_if_reached(self, version: int) -> None:
        if self._tokens is not None and self.num_tokens >= self._tokens:
            self.steps = version


class GateMeter(Stopwatch):
    """Count the seconds in which admission is held back and no request is open."""

    def __init__(self) -> None:
        super().__init__()
        self._held = False

    @property
    def _counts(self) -> bool:
        return self._held and self._open == 0

    def hold(self, held: bool) -> None:
        """Note whether the gate or the cap keeps groups that the run needs from starting."""
        self._settle()
        self._held = held
