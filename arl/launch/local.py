"""Start the processes of a run on this machine, as children of the controller that listen on loopback.

start ─► spawn: the runner, then the command ─► LocalProcess ─► logs/<role>.log
end of the context ─► SIGTERM to all ─► SIGKILL after `patience` seconds, to their children as well
"""

import asyncio
import contextlib
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from arl.launch.address import HOST, LOOPBACK, LOOPBACK_INTERFACE, held_port
from arl.launch.base import Command, Node, Process, Resources
from arl.launch.child import NICENESS
from arl.launch.device_memory import smallest_device
from arl.launch.devices import VISIBLE_DEVICES, visible_cores, visible_devices
from arl.launch.process import start_process

# Threads that wait for each other must not burn the cores that the processes share.
PASSIVE_WAITS = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}


class LocalLauncher:
    """Launch processes on this machine; see arl.launch.base.Launcher.

    Args:
        logs: directory of the logs, made when the context is entered.
        patience: seconds from SIGTERM to SIGKILL at the end of the context.
    """

    def __init__(self, logs: Path, patience: float) -> None:
        self._logs = logs
        self._patience = patience
        self._processes: list[Process] = []

    async def __aenter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stops = [process.stop(self._patience) for process in self._processes]
        await asyncio.shield(asyncio.gather(*stops))

    @property
    def nodes(self) -> Sequence[Node]:
        devices = visible_devices()
        smallest = smallest_device(devices) if devices else None
        name, num_bytes = smallest or ("GPU", None)
        return [Node(platform.node(), visible_cores(), devices, name, num_bytes)]

    @property
    def host(self) -> str:
        return LOOPBACK

    @property
    def shares_files(self) -> bool:
        return True

    @property
    def logs(self) -> Path:
        return self._logs

    @property
    def processes(self) -> Sequence[Process]:
        return self._processes

    async def start(
        self, role: str, command: Command, resources: Resources, on_line: Callable[[str], None] | None = None
    ) -> Process:
        environment = {
            **PASSIVE_WAITS,
            **command.environment,
            **_granted(resources),
            **LOOPBACK_INTERFACE,
            HOST: self.host,
            "PYTHONUNBUFFERED": "1",
        }
        log = self._logs / f"{role}.log"
        process = await start_process(role, Command(command.argv, environment), log, on_line)
        self._forget_dead(role)
        self._processes.append(process)
        return process

    def _forget_dead(self, role: str) -> None:
        """Forget the dead predecessors of a process, because their pids may be another program's by now."""
        self._processes = [p for p in self._processes if p.role != role or p.exit_code is None]

    @contextlib.contextmanager
    def rendezvous(self, num_ranks: int) -> Iterator[Sequence[Mapping[str, str]]]:
        with held_port(self.host) as port:
            common = {
                "MASTER_ADDR": self.host,
                "MASTER_PORT": str(port),
                "WORLD_SIZE": str(num_ranks),
                "LOCAL_RANK": "0",  # each rank sees only its own device
            }
            yield [{**common, "RANK": str(rank)} for rank in range(num_ranks)]


def _granted(resources: Resources) -> dict[str, str]:
    """Return the environment variables that limit a process to its threads, devices and priority."""
    return {
        "OMP_NUM_THREADS": str(resources.threads),
        VISIBLE_DEVICES: ",".join(resources.devices),
        NICENESS: str(resources.niceness),
    }
