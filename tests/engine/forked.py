"""Start engine servers in a seventh of a second: forks of one process that has imported everything."""

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, cast

from arl.engine.http.engine_client import HttpEngine
from arl.engine.router import Router
from arl.engine.supervisor import EngineSupervisor
from arl.errors import ProcessDied
from arl.launch.child import PARENT, RUN_KEY, die_with_parent
from arl.launch.spawn import describe_state
from tests.engine.conftest import KEY
from tests.forks import forks

PASSES = 20


def _serve(arguments: list[str], key: str, output: Connection, stops: bool) -> None:
    from arl.engine.embedded.model_runner import ModelRunner
    from arl.engine.embedded.server import main

    forward, done = ModelRunner.forward, itertools.count()

    def forward_and_stop(*given: Any) -> Any:
        if next(done) == PASSES:
            os.kill(os.getpid(), signal.SIGSTOP)
        return forward(*given)

    if stops:
        ModelRunner.forward = forward_and_stop  # type: ignore[assignment]
    os.environ |= {RUN_KEY: key, PARENT: str(os.getppid())}
    die_with_parent()
    sys.stdout = os.fdopen(os.dup(output.fileno()), "w")
    output.close()
    main(arguments)


class ForkedServer:
    """Stand for a Process before the supervisor: a real process, with its real death.

    One that `stops` does so after PASSES: what happens to it then finds its request open, however slow the caller is.
    """

    def __init__(self, role: str, arguments: list[str], key: str, stops: bool) -> None:
        self.role = role
        self._output, theirs = forks.Pipe(duplex=False)
        self._process = forks.Process(target=_serve, args=(arguments, key, theirs, stops), daemon=True)
        self._process.start()
        theirs.close()
        self._ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._output.fileno(), self._hear)

    def __str__(self) -> str:
        return f"{self.role} (pid {self.pid})"

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.exitcode

    def _hear(self) -> None:
        said = os.read(self._output.fileno(), 1 << 12).decode()
        if said.startswith("ready ") and not self._ready.done():
            self._ready.set_result(said.split()[1])
        elif not said:
            asyncio.get_running_loop().remove_reader(self._output.fileno())
            self._output.close()
            self._process.join()
            self._ended.set()

    async def ready(self, seconds: float) -> str:
        async with asyncio.timeout(seconds):
            ended = asyncio.create_task(self._ended.wait())
            waiting: set[asyncio.Future[Any]] = {ended, self._ready}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            if not self._ready.done():
                raise await self.died()
            return self._ready.result()

    async def ended(self) -> str:
        await self._ended.wait()
        code = self.exit_code
        assert code is not None
        return f"{self} " + (f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}")

    async def died(self) -> ProcessDied:
        return ProcessDied(await self.ended())

    async def wait_then_kill_group(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            self._process.kill()
            await self._ended.wait()
            return False
        return True

    async def state(self) -> str:
        return describe_state(self.pid)

    def log_tail(self) -> str:
        return "It has no log."


@dataclass
class Servers:
    """Run a router over forked servers that are replaced when they die."""

    model: str
    count: int
    slots: int = 8
    generate_seconds: float = 10.0
    swap_seconds: float = 10.0
    max_restarts: int = 1000
    stopping: int = 0  # so many of the next servers stop by themselves
    on_start: Callable[[int], None] = lambda _: None
    running: dict[int, ForkedServer] = field(default_factory=dict)  # by slot, the newest
    notes: list[str] = field(default_factory=list)

    async def start(self, slot: int) -> ForkedServer:
        options = ["--threads", "1", "--slots", str(self.slots), "--stream-interval", "4"]
        arguments = ["--model", self.model, "--port", "0", *options]
        self.running[slot] = ForkedServer(f"engine-{slot}", arguments, KEY, self.stopping > 0)
        self.stopping -= 1
        self.on_start(slot)
        return self.running[slot]

    def connect(self, url: str) -> HttpEngine:
        return HttpEngine(
            url,
            generate_seconds=self.generate_seconds,
            swap_seconds=self.swap_seconds,
            key=KEY,
        )

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Router]:
        router = Router([None] * self.count)
        try:
            async with asyncio.TaskGroup() as tasks:
                supervisors = []
                for slot in range(self.count):
                    start = partial(self.start, slot)
                    supervisor = EngineSupervisor(
                        router, slot, cast(Any, start), self.connect, 300, self.max_restarts, self.notes.append
                    )
                    supervisors.append((supervisor, tasks.create_task(supervisor.supervise(cast(Any, await start())))))
                for supervisor, _ in supervisors:
                    await supervisor.has_served.wait()
                yield router
                for _, task in supervisors:
                    task.cancel()
        finally:
            for server in self.running.values():
                await server.wait_then_kill_group(0)

    def kill(self, slot: int, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.running[slot].pid, number)
        if number == signal.SIGTERM:
            os.kill(self.running[slot].pid, signal.SIGCONT)  # else one that has stopped would not get the signal
