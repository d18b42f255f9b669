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

from arl.launch.network import HOST, interface_environment
from arl.launch.process import OUTPUT_SECONDS, PIECE, PipedChild, Process, start_child
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
        own = {**environment, **interface_environment(environment[HOST]), **take_variables(secrets)}
        self._child = await start_child(argv, own, inherited=inherited, directory=directory)
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


class RayProcess(Process):
    """Watch one process on a node of a Ray cluster.

    Args:
        actor: handle of its ChildActor, which has started it.
        pid: its process id on its node.
        node: number of its node.
        node_name: as messages show it.
        describe_loss: says what has happened to the actor, by Ray's error.
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
        describe_loss: Callable[[RayError], Awaitable[str]],
    ) -> None:
        self._actor = actor
        self._pid = pid
        self._describe_loss = describe_loss
        self._loss = ""  # what has happened to its actor
        self._killing: asyncio.Task[None] | None = None
        self._following = asyncio.create_task(self._follow(), name=f"end of {role}")
        super().__init__(role, log, on_line, node, node_name)

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def exit_code(self) -> int | None:
        return self._following.result() if self._following.done() else None

    async def _follow(self) -> int:
        """Wait for its exit code, which its actor reports, or for the end of the actor, which Ray reports."""
        try:
            code: int = await self._actor.wait.remote()
        except RayError as error:
            self._loss = await self._describe_loss(error)
            return -signal.SIGKILL
        return code

    async def _wait(self) -> object:
        return await asyncio.shield(self._following)

    async def _read(self) -> bytes:
        try:
            piece: bytes = await self._actor.read.remote()
        except RayError:  # `_follow` reports it
            return b""
        return piece

    def _signal(self, number: signal.Signals) -> None:
        if self._loss:
            return  # Ray would complain about each call to an actor that is gone
        if number is not signal.SIGKILL:
            self._actor.kill.remote(int(number))
        elif self._killing is None:
            self._killing = asyncio.create_task(self._kill_all(), name=f"kill of {self.role}")

    async def _kill_all(self) -> None:
        """Kill it with everything in its session, read the rest of its output, and end its actor.

        A Ray worker that does not answer in time is killed, and the kernel kills its child.
        """
        with contextlib.suppress(TimeoutError, RayError):
            async with asyncio.timeout(END_SECONDS):
                await self._actor.kill.remote(int(signal.SIGKILL))
                await self._wait()
                await asyncio.wait({self._copying}, timeout=OUTPUT_SECONDS)
        ray.kill(self._actor)

    async def _end(self) -> None:
        await super()._end()
        if self._killing is not None:
            await self._killing

    def _how_it_ended(self) -> str:
        return self._loss or super()._how_it_ended()
