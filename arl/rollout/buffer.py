"""Keep finished groups until a step consumes them, earliest deadline first."""

from collections import Counter, deque
from collections.abc import Iterator

from arl.types import TrajectoryGroup


class GroupBuffer:
    """Keep one queue for each deadline. Deadlines are few, so every operation is O(1) per group."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[TrajectoryGroup]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, group: TrajectoryGroup, deadline: int) -> None:
        """Add a group that the step of version `deadline` must train at the latest."""
        queue = self._queues.setdefault(deadline, deque())
        queue.append(group)
        self._size += 1

    def __iter__(self) -> Iterator[tuple[int, TrajectoryGroup]]:
        """Yield (deadline, group), earliest deadline first, in order of arrival within one."""
        for deadline in sorted(self._queues):
            for group in self._queues[deadline]:
                yield deadline, group

    def earliest(self, count: int) -> Counter[int]:
        """Choose the first `count` groups in the order of deadlines, and return how many there are of each deadline."""
        chosen: Counter[int] = Counter()
        for deadline in sorted(self._queues):
            if count == 0:
                break
            taken = min(count, len(self._queues[deadline]))
            chosen[deadline] = taken
            count -= taken
        return chosen

    def take(self, chosen: Counter[int]) -> tuple[TrajectoryGroup, ...]:
        """Remove and return the groups that `earliest` chose: within a deadline the first to arrive, ordered by id.

        They are not ordered by arrival, because their order decides their minibatch, and no minibatch may consist of
        the quick ones.
        """
        groups: list[TrajectoryGroup] = []
        for deadline in sorted(chosen):
            queue = self._queues[deadline]
            first = [queue.popleft() for _ in range(chosen[deadline])]
            groups += sorted(first, key=lambda group: group.group_id)
            if not queue:
                del self._queues[deadline]
        self._size -= len(groups)
        return tuple(groups)
