"""Replace servers that are killed, fall silent or exit, or end the run with the reason. Whole runs kill real ones."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from arl import clock
from arl.engine.router import Router
from arl.engine.supervisor import EngineSupervisor
from arl.errors import DeadlineError, EngineLost, ProcessDied, RunError, leaves
from tests.engine.conftest import ask
from tests.engine.mortal import Mortal, opened, uninterrupted


class FakeProcess:
    """Stand for the process of a server, which its engine does not outlive."""

    def __init__(self, pid: int, exit_code: int | None) -> None:
        self.pid = pid
        self.engine = Mortal()
        self.exit_code = exit_code

    def __str__(self) -> str:
        return f"engine-0 (pid {self.pid})"

    def end(self, code: int) -> None:
        self.exit_code = code
        self.engine.die()

    async def ready(self, seconds: float) -> str:
        if self.exit_code is not None:
            raise await self.died()
        return str(self.pid)

    async def ended(self) -> str:
        while self.exit_code is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return f"{self} " + ("was killed by SIGKILL" if self.exit_code == -9 else f"exited with code {self.exit_code}")

    async def died(self) -> ProcessDied:
        return ProcessDied(await self.ended())

    async def wait_then_kill_group(self, seconds: float) -> bool:
        await asyncio.sleep(seconds)
        died = self.exit_code is not None
        self.end(self.exit_code or 0 if died else -9)
        return died

    async def state(self) -> str:
        return "is stopped by a signal"

    def log_tail(self) -> str:
        return "It has no log."


class Servers:
    """Run a router over one server that is replaced when it ends."""

    def __init__(self, max_restarts: int = 1000, exit_code: int | None = None) -> None:
        self.processes: list[FakeProcess] = []
        self.notes: list[str] = []
        self.max_restarts = max_restarts
        self.exit_code = exit_code

    async def start(self) -> Any:
        self.processes.append(FakeProcess(len(self.processes) + 1, self.exit_code))
        return self.processes[-1]

    @contextlib.asynccontextmanager
    async def connect(self, url: str) -> AsyncIterator[Mortal]:
        yield self.processes[int(url) - 1].engine

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Router]:
        router = Router([None])
        connect = cast(Any, self.connect)
        supervisor = EngineSupervisor(router, 0, self.start, connect, 300, self.max_restarts, self.notes.append)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(supervisor.supervise(await self.start()))
            await supervisor.has_served.wait()
            yield router
            task.cancel()


LONG = ask("long", tokens=40)
SILENT = DeadlineError("engine client waited 5 s for it. Waiting: nobody else")


@pytest.mark.parametrize(
    ("code", "error", "how"),
    [
        (-9, None, "was killed by SIGKILL"),
        (0, None, "exited with code 0"),
        (None, EngineLost("reset"), "broke its connection and was killed"),
        (None, SILENT, "is stopped by a signal, did not answer in time (engine client waited 5 s for it) and was"),
    ],
)
def test_however_a_server_ends_its_requests_go_on_as_if_it_had_not(
    code: int | None, error: RunError | None, how: str
) -> None:
    async def main() -> None:
        servers = Servers()
        async with servers.open() as router:
            (task,) = await opened(router, LONG)
            await asyncio.sleep(10)
            (process,) = servers.processes
            process.engine.die(error)
            if code is not None:
                process.end(code)
            assert (await task).token_ids == uninterrupted(LONG)
            (note,) = servers.notes
            assert note.startswith(f"engine-0 (pid 1) {how}")
            assert "; restarted in " in note
            assert note.endswith(" s at version 0; 1 requests resumed")
            assert router.restarts == 1

    clock.run(main, virtual=True)


@pytest.mark.parametrize(
    ("exit_code", "reason"),
    [
        (None, "was killed by SIGKILL; engine.max_restarts 1 allows no more in 3600 s.\nIt has no log."),
        (2, "exited with code 2.\nIt has no log."),  # it never comes up
    ],
)
def test_one_end_too_many_ends_the_run(exit_code: int | None, reason: str) -> None:
    async def main() -> None:
        servers = Servers(max_restarts=1, exit_code=exit_code)
        async with servers.open():
            while True:
                await asyncio.sleep(10)
                servers.processes[-1].end(-9)

    with pytest.raises(ExceptionGroup) as caught:
        clock.run(main, virtual=True)
    assert [reason in str(cause) for cause in leaves(caught.value)] == [True]
