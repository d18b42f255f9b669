"""Run one command on a node of a Ray cluster, as the child of a Ray worker, and watch it from the controller.

RayProcess (controller) ── start, read, wait, kill ─► ChildActor (Ray worker on the node) ─► runner ─► the command

The kernel kills the command when the worker dies (arl.launch.child), and Ray ends the worker when the controller dies.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from arl.launch.base import Command
from arl.launch.network import HOST, interface_environment
from arl.launch.process import PIECE, PipedChild, WatchedProcess, start_child
from arl.launch.run_secrets import take_variables
from arl.launch.spawn import kill_session, signal_all

RAY = "RAY_"  # begins the variables of Ray's own, its token among them
END_SECONDS = 20.0  # for a Ray worker to answer when its process is killed; Ray kills the worker then, if it still can


class ChildActor:
    """Hold one command on its node, from its start to its end."""

    _child: PipedChild

    async def start(self, argv: Sequence[str], environment: Mapping[str, str], secrets: str, directory: str) -> int:
        """Start the command, and return its process id.

        Args:
            argv: program and arguments.
            environment: variables that are added to those of this node, without Ray's own; the address among them.
            secrets: file with more of them.
            directory: in which it runs.
        """
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(RAY)}
        network = interface_environment(environment[HOST])
        command = Command(tuple(argv), {**environment, **network}, take_variables(secrets))
        self._child = await start_child(command, inherited=inherited, directory=directory)
        return self._child.process.pid

    async def read(self) -> bytes:
        """Wait for the next piece of output; empty: there is no more."""
        return await self._child.output.read(PIECE)

    async def wait(self) -> int:
        """Wait until the command has ended, and return its exit code."""
        return await self._child.process.wait()

    async def kill(self, number: int) -> None:
        """Send a signal to the command and to what it has started; SIGKILL also to what has left its process group."""
        if number == signal.SIGKILL:
            kill_session(self._child.process)
        else:
            signal_all(self._child.process, signal.Signals(number))


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
        self._describe_loss = describe_loss
        self._loss = ""  # what has happened to its actor
        self._exit_code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._giving_up: asyncio.Task[None] | None = None
        self._following = asyncio.create_task(self._follow(), name=f"end of {role}")
        super().__init__(role, log, on_line, node, node_name)

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def exit_code(self) -> int | None:
        return self._exit_code.result() if self._exit_code.done() else None

    async def _follow(self) -> None:
        """Wait for its end, which its actor reports, or Ray that of the actor."""
        try:
            code = await self._actor.wait.remote()
        except RayError as error:
            await self._lose(error)
        else:
            if not self._exit_code.done():
                self._exit_code.set_result(code)

    async def _lose(self, error: RayError | None) -> None:
        loss = await self._describe_loss(error)
        if not self._exit_code.done():
            self._loss = loss
            self._exit_code.set_result(-signal.SIGKILL)

    async def _wait(self) -> object:
        return await asyncio.shield(self._exit_code)

    async def _read(self) -> bytes:
        try:
            piece: bytes = await self._actor.read.remote()
        except RayError:  # `_follow` reports it
            return b""
        return piece

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal through the Ray worker. If that does not answer SIGKILL in time, it is killed itself."""
        if self._loss:
            return  # Ray would complain about each call to an actor that is gone
        self._actor.kill.remote(int(number))
        if number is signal.SIGKILL and self.exit_code is None and self._giving_up is None:
            self._giving_up = asyncio.create_task(self._give_up_in_time(), name=f"deadline of {self.role}")

    async def _give_up_in_time(self) -> None:
        """Wait for the end of the process, and kill the Ray worker if it does not say that the process has ended."""
        await asyncio.wait({self._exit_code}, timeout=END_SECONDS)
        if self.exit_code is None:
            ray.kill(self._actor)
            await self._lose(None)

    async def _end(self) -> None:
        self._signal(signal.SIGKILL)
        try:
            with contextlib.suppress(TimeoutError, RayError):  # its worker is given up, or has ended
                async with asyncio.timeout(END_SECONDS):
                    await self._actor.kill.remote(int(signal.SIGKILL))  # answered when nothing is left
            await self._wait()
        finally:
            ray.kill(self._actor)
            self._following.cancel()

    def _how_it_ended(self) -> str:
        return self._loss or super()._how_it_ended()
