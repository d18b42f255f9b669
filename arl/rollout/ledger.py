"""Count what becomes of every admitted group, and how long the engines have nothing to do.

admitted = trained + lost, by fate + in flight
"""

from collections import Counter
from dataclasses import dataclass, field

from arl.engine.meters import Stopwatch


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


@dataclass
class GroupMeter:
    """Count what ran in the groups of all sources."""

    reward_wait_seconds: float = 0.0  # clock seconds from the end of a group's last episode to its grades, summed
    num_graded: int = 0  # groups in that sum
    num_diverged: int = 0  # episodes whose env did not repeat what a resumed run had recorded


class GateMeter:
    """Count the seconds in which admission is held back and no request is open."""

    def __init__(self) -> None:
        self._watch = Stopwatch()
        self._open = 0
        self._held = False

    @property
    def seconds(self) -> float:
        """Return the seconds until now."""
        return self._watch.seconds

    def opened(self, count: int) -> None:
        """Count `count` more open requests, or fewer when it is negative."""
        self._open += count
        self._watch.run(self._held and self._open == 0)

    def hold(self, held: bool) -> None:
        """Note whether the gate or the cap keeps groups that the run needs from starting."""
        self._held = held
        self._watch.run(self._held and self._open == 0)
