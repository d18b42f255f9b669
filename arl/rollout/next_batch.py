"""Keep finished groups, and decide when a step may start and which of them it consumes.

finished groups ─► choose: P of the earliest deadlines ─► does that break the bound of a later step?
                                                            │ yes: wait for the group in its way, or drop it
                                                            └ no: the step starts
"""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Literal

from arl.clock import now, outer_deadline
from arl.rollout.base import Segment
from arl.types import StepWaits, TrajectoryGroup


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


class WaitTimer:
    """Sum the waits of one step by their cause: a field of StepWaits."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()

    @contextlib.contextmanager
    def waiting_for(self, cause: Literal["groups", "bound", "device"]) -> Iterator[None]:
        """Count the seconds of the block."""
        began = now()
        yield
        self._seconds[cause] += now() - began  # type: ignore[assignment]

    def waits(self) -> StepWaits:
        """Return the sums."""
        return StepWaits(**self._seconds)


class NextBatch:
    """Wait for the groups of one step after the other.

    Args:
        buffer: the finished groups.
        abandon: gives up the oldest unfinished group that is due by a version.
        has_no_more: returns whether nothing runs and nothing can start while the engines serve this version.
        describe: returns the counts of this moment, for messages.
    """

    def __init__(
        self,
        segment: Segment,
        buffer: GroupBuffer,
        *,
        abandon: Callable[[int], None],
        has_no_more: Callable[[int], bool],
        describe: Callable[[], str],
    ) -> None:
        self._rollout = segment.rollout
        self._timeout = segment.deadlines.step
        self._engine = segment.engine
        self._admission = segment.admission
        self._buffer = buffer
        self._abandon = abandon
        self._has_no_more = has_no_more
        self._describe = describe
        self.finished = asyncio.Event()  # set by a finished or lost group, and by a swap

    async def wait(self, version: int, timer: WaitTimer) -> Counter[int] | None:
        """Wait until step `version` may start (docs/design.md §4); the deadline counts from the last group that ended.

        Returns:
            How many groups of each deadline it consumes; None: a recording has no more groups.
        """
        what = f"{self._rollout.problems_per_step} groups for step {version}"
        async with outer_deadline(self._timeout, "trainer", lambda: f"{what}; {self._describe()}") as scope:
            while True:
                self.finished.clear()
                chosen = self._choose(version)
                if chosen is not None:
                    return chosen
                if self._has_no_more(version):
                    return None
                with timer.waiting_for("groups" if self._has_too_few else "bound"):
                    await self.finished.wait()
                scope.reschedule(now() + self._timeout)

    @property
    def _has_too_few(self) -> bool:
        return len(self._buffer) < self._rollout.problems_per_step

    def _choose(self, version: int) -> Counter[int] | None:
        """Choose the groups that are due first, if step `version` may consume them now; else None.

        With `rollout.late: drop`, unfinished groups that are in its way are abandoned, oldest first.
        """
        if self._has_too_few or self._is_too_far_ahead(version):
            return None
        chosen = self._buffer.earliest(self._rollout.problems_per_step)
        blocking = self._admission.first_blocking(version, chosen)
        while blocking is not None and self._rollout.late == "drop":
            self._abandon(blocking)
            blocking = self._admission.first_blocking(version, chosen)
        return chosen if blocking is None else None

    def _is_too_far_ahead(self, version: int) -> bool:
        """Return whether a run without a bound must wait for its engines, because published versions take memory."""
        if not self._rollout.is_unbounded:
            return False
        return version > self._engine.loaded_version + self._rollout.versions_ahead
