"""Run one command on a node of a Ray cluster, as the child of the Ray worker in which this actor lives.

RayProcess (controller) ── start, read, wait, signal_all, end ─► ChildActor ─► runner ─► the command

The kernel kills the command when the worker dies (arl.launch.child), and Ray ends the worker when the controller dies.
"""

import os
import signal
from collections.abc import Mapping, Sequence

from arl.launch.address import HOST
from arl.launch.base import Command
from arl.launch.grants import interface_environment
from arl.launch.process import PIECE, PipedChild, start_child
from arl.launch.secret_file import take_secret_file
from arl.launch.spawn import kill_session, signal_all

RAY = "RAY_"  # begins the variables of Ray's own, its token among them


class ChildActor:
    """Hold one command, from its start to its end."""

    def __init__(self) -> None:
        self._child: PipedChild | None = None

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
        command = Command(tuple(argv), {**environment, **network}, take_secret_file(secrets))
        self._child = await start_child(command, inherited=inherited, directory=directory)
        return self._child.process.pid

    async def read(self) -> bytes:
        """Wait for the next piece of output; empty: there is no more."""
        return await self._started.output.read(PIECE)

    async def wait(self) -> int:
        """Wait until the command has ended, and return its exit code."""
        return await self._started.process.wait()

    async def signal_all(self, number: int) -> None:
        """Send a signal to the command and to what it has started."""
        signal_all(self._started.process, signal.Signals(number))

    async def end(self) -> None:
        """Kill what is left of the command and of everything in its session."""
        kill_session(self._started.process)

    @property
    def _started(self) -> PipedChild:
        assert self._child is not None, "it was not started"
        return self._child
