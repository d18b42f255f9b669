"""Watch a command that a ChildActor runs on another node."""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from arl.launch.process import WatchedProcess
from arl.launch.process_state import RUNS

END_SECONDS = 20.0  # for a Ray worker to answer when its process is killed; Ray kills the worker then, if it still can


class RayProcess(WatchedProcess):
    """Watch one process on a node of a Ray cluster; see arl.launch.base.Process.

    Args:
        actor: handle of its ChildActor, which has started it.
        pid: its process id on its node.
        node: number of its node.
        node_name: as messages show it.
        describe_loss: says what has happened to the actor, by Ray's error; None: it does not answer.
    """

    def __init__(
        self,
        role: str,
        log: Path,
        on_line: Callable[[str], None] | None,
        *,
        actor: Any,
        pid: int,
        node: int,
        node_name: str,
        describe_loss: Callable[[RayError | None], Awaitable[str]],
    ) -> None:
        self._actor = actor
        self._pid = pid
        self._node = node
        self._node_name = node_name
        self._describe_loss = describe_loss
        self._exit_code: int | None = None
        self._loss = ""  # what has happened to its actor
        self._over = asyncio.Event()
        self._giving_up: asyncio.Task[None] | None = None
        self._following = asyncio.create_task(self._follow(), name=f"end of {role}")
        super().__init__(role, log, on_line)

    def __str__(self) -> str:
        return f"{self.role} (pid {self.pid} on {self._node_name})"

    @property
    def node(self) -> int:
        return self._node

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def exit_code(self) -> int | None:
        return self._exit_code

    async def state(self) -> str:
        return RUNS  # as far as it is known here

    async def _follow(self) -> None:
        """Wait for its end, which its actor reports, or Ray that of the actor."""
        try:
            self._has_ended(await self._actor.wait.remote())
        except RayError as error:
            self._has_ended(-signal.SIGKILL, await self._describe_loss(error))

    def _has_ended(self, code: int, loss: str = "") -> None:
        if self._exit_code is None:
            self._exit_code = code
            self._loss = loss
            self._over.set()

    async def _wait(self) -> None:
        await self._over.wait()

    async def _read(self) -> bytes:
        try:
            piece: bytes = await self._actor.read.remote()
        except RayError:  # `_follow` reports it
            return b""
        return piece

    def _stop_reading(self) -> None:
        """Do nothing: the worker of the actor holds the pipe, and closes it when it ends."""

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal through the Ray worker. If that does not answer SIGKILL in time, it is killed itself."""
        if self._loss:
            return  # Ray would complain about each call to an actor that is gone
        self._actor.signal_all.remote(int(number))
        if number is signal.SIGKILL and self._exit_code is None and self._giving_up is None:
            self._giving_up = asyncio.create_task(self._give_up_in_time(), name=f"deadline of {self.role}")

    async def _give_up_in_time(self) -> None:
        """Wait for the end of the process, and kill the Ray worker if it does not say that the process has ended."""
        try:
            async with asyncio.timeout(END_SECONDS):
                await self._wait()
        except TimeoutError:
            ray.kill(self._actor)
            self._has_ended(-signal.SIGKILL, await self._describe_loss(None))

    async def _end(self) -> None:
        self._signal(signal.SIGKILL)
        try:
            with contextlib.suppress(TimeoutError, RayError):  # its worker is given up, or has ended
                async with asyncio.timeout(END_SECONDS):
                    await self._actor.end.remote()  # also what has left the process group
            await self._wait()
        finally:
            ray.kill(self._actor)
            self._following.cancel()

    def _how_it_ended(self) -> str:
        return self._loss or super()._how_it_ended()
