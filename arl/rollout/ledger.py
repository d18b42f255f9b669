"""Count what becomes of every admitted group: admitted = trained + lost, by fate + in flight."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Ledger:
    """Count admitted groups: each is trained, lost with one fate (see arl.types), or still in flight."""

    admitted: int = 0  # groups so far: the group_id of the next one
    trained: int = 0
    lost: Counter[str] = field(default_factory=Counter)  # fate -> groups
    restarted_tokens: int = 0  # sampled by ended episodes that a resumed run began anew; see OpenGroup.restored

    @property
    def in_flight(self) -> int:
        """Return the number of groups that are running, or finished and in the buffer."""
        return self.admitted - self.trained - self.lost.total()
