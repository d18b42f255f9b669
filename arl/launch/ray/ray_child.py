"""Represent to the controller a command that a ChildActor runs on another node."""

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayActorError

from arl.launch.watched_process import describe_exit

END_SECONDS = 20.0  # for a node to answer when its process is ended; Ray ends the process then, if the node still lives


class RayChild:
    """Represent one command on a node; see arl.launch.watched_process.Child.

    Args:
        actor: handle of its ChildActor, which has started it.
        pid: its process id on its node.
        describe_loss: says what has happened to the actor, by Ray's error.
    """

    def __init__(self, actor: Any, pid: int, describe_loss: Callable[[RayActorError], str]) -> None:
        self._actor = actor
        self._pid = pid
        self._describe_loss = describe_loss
        self._position = 0  # in its output
        self._returncode: int | None = None
        self._end = ""
        self._following = asyncio.create_task(self._follow(), name=f"end of pid {pid}")

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def returncode(self) -> int | None:
        return self._returncode

    async def wait(self) -> None:
        await asyncio.shield(self._following)

    async def read(self) -> bytes:
        try:
            piece: bytes = await self._actor.read.remote(self._position)
        except RayActorError:  # `wait` says so
            return b""
        self._position += len(piece)
        return piece

    def stop_reading(self) -> None:
        """Do nothing: the pipe is closed with the worker that holds it."""

    def signal_all(self, number: signal.Signals) -> None:
        if self._returncode is None or number is signal.SIGKILL:
            self._actor.signal_all.remote(int(number))

    async def end(self) -> None:
        try:
            async with asyncio.timeout(END_SECONDS):
                await self._actor.end.remote()
                await self.wait()
        except (TimeoutError, RayActorError):
            self._has_ended(-signal.SIGKILL, "was given up, because its node does not answer")
        finally:
            ray.kill(self._actor)
            self._following.cancel()

    def how_it_ended(self) -> str:
        return self._end

    async def _follow(self) -> None:
        """Wait for its end, which it reports, or Ray does with its node or worker."""
        try:
            code = await self._actor.wait.remote()
        except RayActorError as error:
            self._has_ended(-signal.SIGKILL, self._describe_loss(error))
        else:
            self._has_ended(code, describe_exit(code))

    def _has_ended(self, code: int, how: str) -> None:
        if self._returncode is None:
            self._returncode = code
            self._end = how
