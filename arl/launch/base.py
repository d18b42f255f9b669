"""Define the launcher seam: how the processes of a run are started, reached, watched and ended.

    recipe.launcher ─► make_launcher ─► Launcher ── start(role, command, resources) ─► Process
                                           │                                              │
                                     nodes, shares_files                  ready · died · stop · end of its log

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
import inspect
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, cast

from arl.config.imports import check_seam, import_attribute
from arl.config.recipe import Recipe
from arl.errors import ProcessDied, RecipeError
from arl.launch.devices import VISIBLE_DEVICES
from arl.launch.network import LOOPBACK
from arl.launch.run_secrets import write_variables

BUILT_IN = {
    "local": "arl.launch.local:LocalLauncher",
    "slurm": "arl.launch.slurm.slurm_launcher:SlurmLauncher",
    "ray": "arl.launch.ray.ray_launcher:RayLauncher",
}
EXAMPLE = BUILT_IN["local"]
# Threads that wait for each other must not burn the cores that the processes share.
PASSIVE_WAITS = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
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
        cores_from: where the number of cores comes from, on a machine that is only planned for.
    """

    name: str
    cores: int
    devices: tuple[str, ...] = ()
    device_name: str = "GPU"
    device_bytes: int | None = None
    planned_by: str | None = None
    address: str = LOOPBACK
    cores_from: str | None = None


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
            **PASSIVE_WAITS,
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


class Process(Protocol):
    """Represent a process that a launcher has started; `str()` of it names its role, its pid, and its node if several.

    engine = await launcher.start("engine-0", command, resources)
    url = await engine.ready(120)
    raise await engine.died()                                       when it has ended
    """

    @property
    def role(self) -> str:
        """Return what it is in the run, such as engine-0 or trainer-1."""

    @property
    def node(self) -> int:
        """Return the number of its node in Launcher.nodes."""

    @property
    def pid(self) -> int:
        """Return its process id on its node; 0: the node is still starting it, and has not reported any."""

    @property
    def exit_code(self) -> int | None:
        """Return its exit code. None: it runs; negative: the signal that killed it."""

    async def state(self) -> str:
        """Return a phrase that says what it does on its node: `runs`, or what keeps it from running."""

    async def ready(self, seconds: float) -> str:
        """Return the address that the process has printed after `ready `.

        Raises:
            ProcessDied: it ended first.
            DeadlineError: `seconds` passed.
        """

    async def ended(self) -> str:
        """Wait until the process has ended, and return a phrase that says how."""

    async def died(self) -> ProcessDied:
        """Wait until the process has ended, and return an error that says how and shows the end of its log.

        Raises:
            Exception: `on_line` has raised it, which is a bug, and the process was killed for it.
        """

    async def finished(self, seconds: float) -> None:
        """Wait for a process that is meant to end.

        Raises:
            ProcessDied: its exit code is not 0.
            DeadlineError: `seconds` passed.
        """

    async def wait_then_kill_group(self, seconds: float) -> bool:
        """Return True if the process ends within `seconds`. Kill what is left of it and of its children then."""

    async def stop(self, seconds: float) -> None:
        """Send SIGTERM, and SIGKILL after `seconds`, to the process and to everything that it started."""

    def log_tail(self) -> str:
        """Return the last lines that it has printed, and where its log is."""


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
        self._logs = logs
        self._patience = patience
        self._processes: list[Process] = []
        self._lost: set[int] = set()
        self._secrets: tempfile.TemporaryDirectory[str] | None = None

    @property
    @abstractmethod
    def nodes(self) -> Sequence[Node]:
        """Return the machines on which it starts processes, the controller's first, also before it is entered.

        Raises:
            InputError: they cannot be used; names each machine and what is wrong with it.
        """

    @abstractmethod
    async def start(
        self, role: str, command: Command, resources: Resources, on_line: Callable[[str], None] | None = None
    ) -> Process:
        """Start a process, without waiting until it is ready.

        Args:
            role: its name in messages, and that of its log.
            command: argv and environment.
            resources: node, threads and devices, which the launcher grants.
            on_line: is called with every line of its output. If it raises, the process is killed, and whoever waits
                for it gets that exception.

        Raises:
            ProcessDied: its node is lost.
        """

    @property
    def lost_nodes(self) -> Collection[int]:
        """Return the numbers of the machines that have failed since; nothing can be started there."""
        return self._lost

    @property
    def shares_files(self) -> bool:
        """Return True if every process reads what another one writes to a file, under the same path."""
        return True  # nodes that do not see the run's directory are refused

    @property
    def logs(self) -> Path:
        """Return the directory of the logs; the output of a process goes to <role>.log."""
        return self._logs

    @property
    def processes(self) -> Sequence[Process]:
        """Return every process that was started, without the dead ones whose role was started again."""
        return self._processes

    async def __aenter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stops = [process.stop(self._patience) for process in self._processes]
        try:
            await asyncio.shield(asyncio.gather(*stops))
        finally:
            if self._secrets is not None:
                self._secrets.cleanup()  # with the files of processes that have never begun

    def _remember(self, process: Process) -> list[Process]:
        """Take a process in the place of its dead predecessors, whose pids may be reused by now, and return those."""
        dead = [known for known in self._processes if known.role == process.role and known.exit_code is not None]
        self._processes = [known for known in self._processes if known not in dead]
        self._processes.append(process)
        return dead

    def _write_secrets(self, role: str, variables: Mapping[str, str]) -> str:
        """Write variables for a process on another node, and return the path of the file, which it removes."""
        if self._secrets is None:
            self._secrets = tempfile.TemporaryDirectory(prefix=SECRETS, dir=self._logs.parent)
        return write_variables(Path(self._secrets.name), role, variables)


def make_launcher(recipe: Recipe, logs: Path) -> Launcher:
    """Make the recipe's launcher, which will write logs into the directory `logs`. It starts nothing yet.

    Raises:
        RecipeError: the name is unknown or does not import, or what it names makes no launcher.
        InputError: the launcher cannot work here, as slurm on a machine without Slurm.
    """
    what = f"launcher {recipe.launcher!r}"
    factory = import_attribute(recipe.launcher, "launcher", BUILT_IN)
    arguments = (logs, recipe.deadlines.shutdown, recipe.cluster)
    try:
        inspect.signature(factory).bind(*arguments)
    except (TypeError, ValueError) as error:  # a class written in C may have no signature
        raise RecipeError(
            f"{what}: it is called with (logs: Path, patience: float, cluster: Cluster), which it does not take "
            f"({error}); see {EXAMPLE}"
        ) from error
    launcher = factory(*arguments)
    check_seam(launcher, what, Launcher, EXAMPLE)
    return cast(Launcher, launcher)
