"""Start the processes of a run on this machine, as children of the controller.

They listen on loopback, or with `cluster.interface` on that interface, so that engines of other machines can join.
`arl engines join` starts engines by it as well, on an address under which the run reaches this machine.

start ─► spawn: the runner, then the command ─► LocalProcess ─► logs/<role>.log
end of the context ─► SIGTERM to all ─► SIGKILL after `patience` seconds, to their children as well
"""

import asyncio
import platform
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from arl.config.cluster_section import Cluster
from arl.errors import RecipeError
from arl.launch.address import HOST, LOOPBACK, own_address
from arl.launch.base import Command, Node, Process, Resources
from arl.launch.devices import visible_cores, visible_devices
from arl.launch.gpu_devices import smallest_device
from arl.launch.grants import granted_environment, interface_environment
from arl.launch.process import start_process

ONE_MACHINE = Cluster()


class LocalLauncher:
    """Launch processes on this machine; see arl.launch.base.Launcher.

    Args:
        logs: directory of the logs, made when the context is entered.
        patience: seconds from SIGTERM to SIGKILL at the end of the context.
        cluster: of the recipe.
        address: of this machine, on which the processes listen; None: that of `cluster.interface`, else loopback.

    Raises:
        RecipeError: the recipe asks for several machines, or for an interface that this one does not have.
    """

    def __init__(
        self, logs: Path, patience: float, cluster: Cluster = ONE_MACHINE, *, address: str | None = None
    ) -> None:
        if cluster.fewest_nodes > 1:
            raise RecipeError(
                f"cluster.nodes {cluster.nodes}: launcher local starts processes on this machine only; use launcher "
                "slurm or ray, or leave cluster.nodes out"
            )
        self._address = address or _address_of(cluster.interface)
        self._environment = {
            **interface_environment(self._address),
            HOST: self._address,
        }
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
        return [
            Node(
                name=platform.node(),
                cores=visible_cores(),
                devices=devices,
                device_name=name,
                device_bytes=num_bytes,
                address=self._address,
            )
        ]

    @property
    def lost_nodes(self) -> Collection[int]:
        return ()

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
            **command.environment,
            **granted_environment(resources),
            **self._environment,
        }
        log = self._logs / f"{role}.log"
        process = await start_process(role, Command(command.argv, environment, command.secrets), log, on_line)
        self._forget_dead(role)
        self._processes.append(process)
        return process

    def _forget_dead(self, role: str) -> None:
        """Forget the dead predecessors of a process, because their pids may be another program's by now."""
        self._processes = [p for p in self._processes if p.role != role or p.exit_code is None]


def _address_of(interface: str | None) -> str:
    """Return the address of this machine on `interface`; None: loopback.

    Raises:
        RecipeError: there is no such interface, or it has no address.
    """
    if interface is None:
        return LOOPBACK
    try:
        return own_address(interface)
    except OSError as error:
        raise RecipeError(f"cluster.interface {interface}: this machine has {error}; leave it out") from error
