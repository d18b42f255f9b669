"""Wait for what trainer ranks report. The first failure ends every wait, present and future."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Coroutine
from typing import Any, NoReturn

from msgspec import Struct

from arl.errors import RunError, TrainerError


class Waits:
    """Hold futures that share one failure.

    waits = Waits()
    answered = waits.new()          raises the failure, if there is one
    waits.fail(error)               from here on every wait raises `error`
    """

    def __init__(self) -> None:
        self._pending: set[asyncio.Future[Any]] = set()
        self._failure: RunError | None = None
        self._failed = asyncio.Event()

    def new(self) -> asyncio.Future[Any]:
        """Make a future that somebody sets, or that the failure ends.

        Raises:
            RunError: the failure has happened already.
        """
        self.check()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    def check(self) -> None:
        """Raise the failure, if there is one."""
        if self._failure is not None:
            raise self._failure

    def fail(self, error: RunError) -> None:
        """End every wait with `error`. Later failures are ignored, because they follow from the first."""
        if self._failure is not None:
            return
        self._failure = error
        self._failed.set()
        waiting = [future for future in self._pending if not future.done()]  # one that has just ended is removed later
        for future in waiting:
            future.set_exception(error)
            future.exception()  # marks it as seen: no task may be waiting for it

    async def failure(self) -> NoReturn:
        """Wait for the failure, and raise it."""
        await self._failed.wait()
        assert self._failure is not None
        raise self._failure


class WatchedTasks:
    """Hold the tasks that listen. One that fails ends every wait, so that none of them ends in silence."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Begin a task."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._note_end)
        self._tasks.append(task)

    async def close(self) -> None:
        """Cancel all tasks, and wait for their ends."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, RunError):
            self._waits.fail(error)
        elif error is not None:
            self._waits.fail(TrainerError(f"{task.get_name()}: this task of the controller has failed: {error!r}"))


class Answers:
    """Collect one answer from each rank to a message that all of them were sent."""

    def __init__(self, num_ranks: int, complete: asyncio.Future[Any]) -> None:
        self.by_rank: dict[int, Any] = {}
        self.complete = complete
        self._num_ranks = num_ranks

    def add(self, rank: int, answer: Struct) -> None:
        """Add the answer of `rank`, and complete the wait with the last one."""
        self.by_rank[rank] = answer
        if not self.missing():
            set_if_waiting(self.complete, None)

    def missing(self) -> set[int]:
        """Return the ranks that have not answered."""
        return set(range(self._num_ranks)) - self.by_rank.keys()


class ThreadAnswers:
    """Hold the questions that threads of rank 0 have not answered, by role. A thread answers them in their order.

    A question may be given up, at its deadline or by a cancellation. Its answer is still due, and is then dropped.
    """

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._asked: defaultdict[str, deque[asyncio.Future[Any]]] = defaultdict(deque)

    def next(self, role: str) -> asyncio.Future[Any]:
        """Return the future of the next answer of the thread `role`, whose question is about to be sent."""
        answered = self._waits.new()
        self._asked[role].append(answered)
        return answered

    def not_asked(self, role: str) -> None:
        """Forget the newest question, which could not be sent."""
        self._asked[role].pop().cancel()

    def add(self, role: str, answer: Struct) -> None:
        """Answer the oldest question. If there is none, its group has broken; the next question finds that."""
        if self._asked[role]:
            set_if_waiting(self._asked[role].popleft(), answer)

    def left(self, role: str) -> None:
        """Forget a thread that has ended; ConnectionError ends the wait for an answer that it has not given."""
        for answered in self._asked.pop(role, ()):
            if not answered.done():
                answered.set_exception(ConnectionError(f"{role} of rank 0 has ended without an answer"))


def set_if_waiting(future: asyncio.Future[Any], value: Any) -> None:
    """Set the result of a future, unless a failure or its reader has ended it before."""
    if not future.done():
        future.set_result(value)
