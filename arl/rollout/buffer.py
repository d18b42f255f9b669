"""Finished groups waiting for a step, earliest deadline first. O(1) per group: deadlines are few, one queue each."""

from collections import Counter, deque
from collections.abc import Iterator

from arl.types import TrajectoryGroup


class GroupBuffer:
    def __init__(self) -> None:
        self._queues: dict[int, deque[TrajectoryGroup]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, group: TrajectoryGroup, deadline: int) -> None:
        self._queues.setdefault(deadline, deque()).append(group)
        self._size += 1

    def __iter__(self) -> Iterator[tuple[int, TrajectoryGroup]]:
        """(deadline, group), earliest deadline first, in order of arrival within one."""
        for deadline in sorted(self._queues):
            for group in self._queues[deadline]:
                yield deadline, group

    def earliest(self, count: int) -> Counter[int]:
        """Deadlines of the first `count` groups in deadline order."""
        chosen: Counter[int] = Counter()
        for deadline in sorted(self._queues):
            chosen[deadline] = min(count, len(self._queues[deadline]))
            count -= chosen[deadline]
        return +chosen

    def take(self, chosen: Counter[int]) -> tuple[TrajectoryGroup, ...]:
        """Remove and return the groups that `earliest` chose: within a deadline the first to arrive, ordered by id.

        Their order decides their minibatch, so it must not tell which of them were quick.
        """
        groups: list[TrajectoryGroup] = []
        for deadline in sorted(chosen):
            queue = self._queues[deadline]
            groups += sorted((queue.popleft() for _ in range(chosen[deadline])), key=lambda g: g.group_id)
            if not queue:
                del self._queues[deadline]
        self._size -= len(groups)
        return tuple(groups)
