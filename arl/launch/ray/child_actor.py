"""Run one command on a node of a Ray cluster, as the child of the Ray worker in which this actor lives.

RayProcess (controller) ── start, read, wait, state, signal_all, end ─► ChildActor ─► runner ─► the command

The kernel kills the command when the worker dies (arl.launch.child), and Ray ends the worker when the controller dies.
Ray calls a method again when a connection broke. So each of them may run twice, even at once, and then does no more
than if it had run once.
"""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence

from arl.launch.address import HOST, interface_of
from arl.launch.base import Command
from arl.launch.process import PIECE, PipedChild, start_child
from arl.launch.process_state import state_of
from arl.launch.spawn import kill_session, signal_all

RAY = "RAY_"  # begins the variables of Ray's own, its token among them


class ChildActor:
    """Hold one command, from its start to its end."""

    def __init__(self) -> None:
        self._child: PipedChild | None = None
        self._piece = b""  # the last one that was read
        self._position = 0  # of its first byte in all of the output
        self._turn = asyncio.Lock()  # one start, or one read, at a time

    async def start(self, argv: Sequence[str], environment: Mapping[str, str], directory: str) -> int:
        """Start the command, and return its process id.

        Args:
            argv: program and arguments.
            environment: variables that are added to those of this node, without Ray's own; the address among them.
            directory: in which it runs.
        """
        async with self._turn:
            if self._child is None:
                inherited = {name: value for name, value in os.environ.items() if not name.startswith(RAY)}
                network = _interface_environment(environment[HOST])
                command = Command(tuple(argv), {**environment, **network})
                self._child = await start_child(command, inherited=inherited, directory=directory)
            return self._child.process.pid

    async def read(self, position: int) -> bytes:
        """Wait for the piece of output that begins at byte `position`; empty: there is no more.

        The piece before is forgotten, because the controller has it.
        """
        async with self._turn:
            end = self._position + len(self._piece)
            if position == end:
                self._piece = await self._started.output.read(PIECE)
                self._position = end
            return self._piece

    async def wait(self) -> int:
        """Wait until the command has ended, and return its exit code."""
        return await self._started.process.wait()

    async def state(self) -> str:
        """Return psutil's word for the state of the command."""
        return state_of(self._started.process.pid)

    async def signal_all(self, number: int) -> None:
        """Send a signal to the command and to what it has started."""
        signal_all(self._started.process, signal.Signals(number))

    async def end(self) -> None:
        """Kill what is left of the command and of everything in its session."""
        if self._child is not None:
            kill_session(self._child.process)

    @property
    def _started(self) -> PipedChild:
        assert self._child is not None, "it was not started"
        return self._child


def _interface_environment(address: str) -> dict[str, str]:
    """Return the variables by which gloo and NCCL use the interface that has the address."""
    interface = interface_of(address)
    if interface is None:
        return {}
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
