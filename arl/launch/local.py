"""Start the processes of a run on this machine, as children of the controller.

They listen on loopback, or with `cluster.interface` on that interface, so that engines of other machines can join.
`arl engines join` starts engines by it as well, on an address under which the run reaches this machine.

start ─► spawn: the runner, then the command ─► LocalProcess ─► logs/<role>.log
end of the context ─► SIGTERM to all ─► SIGKILL after `patience` seconds, to their children as well
"""

import platform
from collections.abc import Sequence
from pathlib import Path

from arl.config.cluster_section import Cluster
from arl.errors import RecipeError
from arl.launch.base import Command, Launcher, Node, OnLine, Process, Resources, this_node
from arl.launch.devices import visible_devices
from arl.launch.network import HOST, LOOPBACK, interface_environment, own_address
from arl.launch.process import start_process

ONE_MACHINE = Cluster()


class LocalLauncher(Launcher):
    """Launch processes on this machine; see arl.launch.base.Launcher.

    Args:
        cluster: of the recipe.
        address: of this machine, on which the processes listen; None: that of `cluster.interface`, else loopback.

    Raises:
        RecipeError: the recipe asks for several machines, or for an interface that this one does not have.
    """

    def __init__(
        self, logs: Path, patience: float, cluster: Cluster = ONE_MACHINE, *, address: str | None = None
    ) -> None:
        super().__init__(logs, patience)
        if cluster.fewest_nodes > 1:
            raise RecipeError(
                f"cluster.nodes {cluster.nodes}: launcher local starts processes on this machine only; use launcher "
                "slurm or ray, or leave cluster.nodes out"
            )
        self._address = address or LOOPBACK
        if address is None and cluster.interface is not None:
            try:
                self._address = own_address(cluster.interface)
            except OSError as error:
                raise RecipeError(
                    f"cluster.interface {cluster.interface}: this machine has {error}; leave it out"
                ) from error

    @property
    def nodes(self) -> Sequence[Node]:
        return [this_node(platform.node(), self._address, visible_devices())]

    async def start(self, role: str, command: Command, resources: Resources, on_line: OnLine = None) -> Process:
        environment = {
            **command.environment,
            **command.secrets,
            **resources.environment,
            **interface_environment(self._address),
            HOST: self._address,
        }
        process = await start_process(role, command.argv, environment, self.logs / f"{role}.log", on_line)
        self._remember(process)
        return process
