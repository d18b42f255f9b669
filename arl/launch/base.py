"""Define the launcher seam: how the processes of a run are started, reached, watched and ended.

    recipe.launcher ─► make_launcher ─► Launcher ── start(role, command, resources) ─► Process
                                           │                                              │
                                     nodes, lost_nodes                    ready · died · stop · end of its log

A run starts its engine servers, its trainer ranks and a warm-up through its launcher. Reward workers are not among
them: each shares a socket with the controller, and so always runs beside it (arl.reward.pool).

Your own launcher may wrap the local one. This one runs every process at the lowest priority:

    class NiceLauncher(LocalLauncher):
        async def start(self, role, command, resources, on_line=None):
            nice = Command(("nice", "-n", "19", *command.argv), command.environment, command.secrets)
            return await super().start(role, nice, resources, on_line)

A recipe names it: `launcher: my_launcher:NiceLauncher`. The attribute is called with the directory of the logs, the
seconds of patience at the end and the recipe's section `cluster`, and returns a Launcher. It starts no process of the
run before it is entered as a context.
"""

import asyncio
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from arl.config.imports import check_seam, import_attribute
from arl.config.recipe import Recipe
from arl.errors import RecipeError
from arl.launch.devices import VISIBLE_DEVICES, find_gpus, visible_cores
from arl.launch.network import LOOPBACK
from arl.launch.process import OnLine as OnLine
from arl.launch.process import Process as Process
from arl.launch.run_secrets import write_variables

BUILT_IN = {
    "local": "arl.launch.local:LocalLauncher",
    "slurm": "arl.launch.slurm.slurm_launcher:SlurmLauncher",
    "ray": "arl.launch.ray.ray_launcher:RayLauncher",
}
EXAMPLE = BUILT_IN["local"]
SECRETS = "secrets-"  # begins the name of the directory of secrets for other nodes, in that of the run


@dataclass(frozen=True)
class Node:
    """Describe a machine. Processes on one node share its memory.

    Args:
        name: of the machine, as messages show it.
        cores: CPU cores that a run may use.
        devices: GPUs that a run may use, as CUDA_VISIBLE_DEVICES names them.
        device_name: what kind of GPUs they are, as messages show it.
        device_bytes: memory of one of them, of the smallest if they differ; None: not known.
        planned_by: the option that names a machine which is only planned for, such as `--gpus 8xH100`; None: it exists.
        address: on which its processes listen, and under which those of all nodes reach them.
    """

    name: str
    cores: int
    devices: tuple[str, ...] = ()
    device_name: str = "GPU"
    device_bytes: int | None = None
    planned_by: str | None = None
    address: str = LOOPBACK


def this_node(name: str, address: str, devices: tuple[str, ...]) -> Node:
    """Describe this machine."""
    node = Node(name, visible_cores(), devices, address=address)
    gpus = find_gpus(devices)
    if not gpus:
        return node
    smallest = min(gpus, key=lambda gpu: gpu.total_bytes)
    return replace(node, device_name=smallest.name, device_bytes=smallest.total_bytes or None)


@dataclass(frozen=True)
class Resources:
    """Say what one process may use.

    Args:
        threads: CPU threads.
        devices: GPUs, as CUDA_VISIBLE_DEVICES names them; empty: the process computes on the CPU.
        takes_turns: the other side of the run uses the same devices; the side that is not at work releases its memory.
        memory_share: fraction of a device's memory that an engine may take for weights and cache, from 0 to 1; None: it
            decides. It binds engines that size their cache when they start, such as SGLang.
        node: number of its node in Launcher.nodes; 0: the controller's.
    """

    threads: int
    devices: tuple[str, ...] = ()
    takes_turns: bool = False
    memory_share: float | None = None
    node: int = 0

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that keep a process to its threads and devices."""
        return {
            # Threads that wait for each other must not burn the cores that the processes share.
            "OMP_WAIT_POLICY": "PASSIVE",
            "GOMP_SPINCOUNT": "0",
            "KMP_BLOCKTIME": "0",
            "OMP_NUM_THREADS": str(self.threads),
            VISIBLE_DEVICES: ",".join(self.devices),
            "PYTHONUNBUFFERED": "1",  # its output must reach the log at once
        }


@dataclass(frozen=True)
class Command:
    """Say what one process runs.

    Args:
        argv: the program and its arguments; never a secret, since every user of a machine reads command lines.
        environment: variables that are added to those of the controller.
        secrets: further variables, which no message shows.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)


class Launcher(ABC):
    """Start the processes of one run, and end all of them when its context ends.

    async with LocalLauncher(logs, patience=10.0) as launcher:
        command = Command((sys.executable, "-m", "arl.engine.embedded.server", "--model", "m", "--port", "0"))
        engine = await launcher.start("engine-0", command, Resources(threads=4))
        url = await engine.ready(120)
        ...

    Args:
        logs: directory of the logs, made when the context is entered; every node sees it.
        patience: seconds from SIGTERM to SIGKILL at the end of the context.
    """

    def __init__(self, logs: Path, patience: float) -> None:
        self.logs = logs  # the output of a process goes to <role>.log there
        self.processes: list[Process] = []  # that were started, without the dead ones whose role was started again
        self.lost_nodes: set[int] = set()  # numbers of those that have failed since; nothing can be started there
        self._patience = patience
        self._secrets: tempfile.TemporaryDirectory[str] | None = None

    @property
    @abstractmethod
    def nodes(self) -> Sequence[Node]:
        """Return the machines on which it starts processes, the controller's first, also before it is entered.

        Raises:
            InputError: they cannot be used; names each machine and what is wrong with it.
        """

    @abstractmethod
    async def start(self, role: str, command: Command, resources: Resources, on_line: OnLine = None) -> Process:
        """Start a process, without waiting until it is ready.

        Args:
            role: its name in messages, and that of its log.
            command: argv and environment.
            resources: node, threads and devices, which the launcher grants.
            on_line: is called with every line of its output. If it raises, the process is killed.

        Raises:
            ProcessDied: its node is lost.
        """

    async def __aenter__(self) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        stops = [process.stop(self._patience) for process in self.processes]
        try:
            await asyncio.shield(asyncio.gather(*stops))
        finally:
            if self._secrets is not None:
                self._secrets.cleanup()  # with the files of processes that have never begun

    def _remember(self, process: Process) -> None:
        """Take a process in the place of its dead predecessors, whose pids may be reused by now."""
        others = [known for known in self.processes if known.role != process.role or known.exit_code is None]
        self.processes = [*others, process]

    def _write_secrets(self, role: str, variables: Mapping[str, str]) -> str:
        """Write variables for a process on another node, and return the path of the file, which it removes."""
        if self._secrets is None:
            self._secrets = tempfile.TemporaryDirectory(prefix=SECRETS, dir=self.logs.parent)
        return write_variables(Path(self._secrets.name), role, variables)


def make_launcher(recipe: Recipe, logs: Path) -> Launcher:
    """Make the recipe's launcher, which will write logs into the directory `logs`. It starts nothing yet.

    Raises:
        RecipeError: the name is unknown or does not import, or what it names makes no launcher.
        InputError: the launcher cannot work here, as slurm on a machine without Slurm.
    """
    factory = import_attribute(recipe.launcher, "launcher", BUILT_IN)
    try:
        launcher: Launcher = factory(logs, recipe.deadlines.shutdown, recipe.cluster)
    except TypeError as error:
        raise RecipeError(
            f"launcher {recipe.launcher!r}: it is called with (logs: Path, patience: float, cluster: Cluster), which "
            f"it does not take ({error}); see {EXAMPLE}"
        ) from error
    check_seam(launcher, f"launcher {recipe.launcher!r}", Launcher, EXAMPLE)
    return launcher
