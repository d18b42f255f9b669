"""Detect that a trainer rank has died or raised, and describe ranks in messages.

end of a process (Process.ended) ─┐
                                  ├─► failure(): the error that says why ─► TrainerClient ends every wait
a rank's traceback (Failed)      ─┘
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping

from arl.clock import deadline
from arl.errors import DeadlineError, DiskError, RunError, TrainerError, short_message
from arl.launch.base import Process
from arl.train.channel import Failed, Hello

MAX_TRACE = 3000  # characters of a rank's traceback that an error shows; all of it is in the rank's log
SETTLE_SECONDS = 1.0  # in which a death, the tracebacks that follow from it, and the exits after them all arrive


class RankWatch:
    """Hold the processes of the trainer ranks, and what has ended them.

    Args:
        hellos: what ranks have said of themselves, by rank; more may come.
    """

    def __init__(self, hellos: Mapping[int, Hello]) -> None:
        self._hellos = hellos
        self._processes: dict[int, Process] = {}  # by rank
        self._endings: list[asyncio.Task[None]] = []
        self._dead: list[Process] = []
        self._raised: RunError | None = None
        self._changed = asyncio.Event()  # a process ended, or a rank raised

    def add(self, rank: int, process: Process) -> None:
        """Watch the process of `rank` until `close`."""
        self._processes[rank] = process
        self._endings.append(asyncio.create_task(self._wait_for_end(process), name=f"end of {process}"))

    def raised(self, rank: int, failed: Failed) -> None:
        """Note the failure that a rank has sent before it exits."""
        self._raised = self._raised or _error_of(self._hellos[rank], failed)
        self._changed.set()

    def close(self) -> None:
        """Stop watching: from here on the ranks may exit."""
        for ending in self._endings:
            ending.cancel()

    async def failure(self) -> RunError:
        """Wait until a rank has died or raised, and return the cause.

        A rank that a signal killed makes others raise, because their collectives break, and a rank that raises exits
        as well. These events come in any order within moments. So a killed rank is the cause, else the first
        traceback, else the exit.
        """
        await self._changed.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                while self._killed() is None:
                    self._changed.clear()
                    await self._changed.wait()
        killed = self._killed()
        if killed is not None:
            return await killed.died()
        if self._raised is not None:
            return self._raised
        return await self._dead[0].died()

    def _killed(self) -> Process | None:
        """Return the first process that a signal has killed."""
        for process in self._dead:
            if process.exit_code is not None and process.exit_code < 0:
                return process
        return None

    async def _wait_for_end(self, process: Process) -> None:
        await process.ended()
        self._dead.append(process)
        self._changed.set()

    def describe(self, ranks: Collection[int]) -> str:
        """Name ranks with their process ids, as in "trainer rank 1 (pid 17 on node-3)"."""
        return " and ".join(self._describe(rank) for rank in sorted(ranks)) or "no trainer rank"

    def _describe(self, rank: int) -> str:
        if rank in self._hellos:
            return str(self._hellos[rank])
        if rank in self._processes:
            return f"trainer rank {rank} (pid {self._processes[rank].pid})"
        return f"trainer rank {rank} (not connected)"

    @contextlib.asynccontextmanager
    async def deadline(
        self, seconds: float, ranks: Callable[[], Collection[int]], what: Callable[[], str]
    ) -> AsyncIterator[None]:
        """Bound a wait for ranks by `seconds`.

        Args:
            seconds: of the running clock.
            ranks: the ranks that are waited for, asked when a message is written.
            what: what they are to do, as in "to publish version 3".

        Raises:
            DeadlineError: names the ranks that are waited for, and shows the ends of their logs.
        """

        def awaited() -> str:
            return f"{self.describe(ranks())} {what()}"

        try:
            async with deadline(seconds, "controller", awaited):
                yield
        except DeadlineError as error:
            processes = [self._processes[rank] for rank in sorted(ranks()) if rank in self._processes]
            logs = "".join(f"\n{process.log_tail()}" for process in processes)
            raise DeadlineError(f"{error}{logs}") from error


def _error_of(hello: Hello, failed: Failed) -> TrainerError | DiskError:
    """Return the error of a rank that has raised. It shows the end of the traceback, which says what happened."""
    who = f"{failed.thread} rank {hello.rank} (pid {hello.pid} on {hello.host}) at version {failed.version}"
    if failed.said:
        kind = DiskError if failed.is_of_disk else TrainerError
        return kind(f"{who}: {short_message(failed.said)}")
    cut = "…" if len(failed.trace) > MAX_TRACE else ""
    trace = f"{cut}{failed.trace[-MAX_TRACE:]}"
    return TrainerError(f"{who} raised:\n{trace}")
