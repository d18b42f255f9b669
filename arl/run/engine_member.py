"""Keep what a run knows of one of its engines, whoever has started it."""

import asyncio
from dataclasses import dataclass, field

from arl.errors import RunError
from arl.launch.base import Process
from arl.run.control.control_messages import JoinEngine


@dataclass(eq=False)
class Member:
    """Describe one engine of the run."""

    name: str  # its role, as in engine-0
    seat: int
    node: str
    guest: JoinEngine | None = None  # as it introduced itself; None: the run has started it
    process: asyncio.Future[Process] | None = None  # the newest one, perhaps still being started
    task: asyncio.Task[None] | None = None  # keeps it
    serves: asyncio.Event = field(default_factory=asyncio.Event)  # set for good when it first serves
    given_up: RunError | None = None
    is_leaving: bool = False

    @property
    def is_starting(self) -> bool:
        """Return whether its newest process is being started."""
        return self.process is not None and not self.process.done()

    @property
    def started(self) -> Process | None:
        """Return its newest process; None: it is being started, could not be, or is somebody else's."""
        process = self.process
        if process is None or not process.done() or process.cancelled():
            return None
        return None if process.exception() is not None else process.result()

    @property
    def pid(self) -> int | None:
        """Return its process id on its node; None: it is being started."""
        if self.guest is not None:
            return self.guest.pid
        return None if self.started is None else self.started.pid

    def __str__(self) -> str:
        return self.name if self.pid is None else f"{self.name} (pid {self.pid} on {self.node})"
