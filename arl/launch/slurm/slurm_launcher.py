"""Start the processes of a run on the nodes of a Slurm job, each as one step of it.

start ─► secret file ─► srun ─► runner on the node ─► the process        SlurmProcess watches srun ─► logs/<role>.log
end of the context ─► SIGTERM to all ─► SIGKILL after `patience` seconds

The controller runs on one of the nodes, and a process beside it is a step as well, so that Slurm counts what it uses.
When the controller dies, the kernel sends SIGTERM to each srun, which ends its step.
"""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from arl.config.cluster_section import Cluster
from arl.errors import ProcessDied
from arl.launch.address import HOST
from arl.launch.base import Command, Node, Resources
from arl.launch.child import DEATH_SIGNAL
from arl.launch.grants import granted_environment
from arl.launch.process import start_child
from arl.launch.secret_file import PREFIX, write_secret_file
from arl.launch.slurm import step_runner
from arl.launch.slurm.allocation import read_allocation, step
from arl.launch.slurm.batch_script import RUN_POINTER
from arl.launch.slurm.step_process import SlurmProcess


class SlurmLauncher:
    """Launch processes on the nodes of a Slurm job; see arl.launch.base.Launcher.

    Args:
        logs: directory of the logs, on a path that all nodes share; made when the context is entered.
        patience: seconds from SIGTERM to SIGKILL at the end of the context.
        cluster: of the recipe.

    Raises:
        InputError: this process is in no job.
    """

    def __init__(self, logs: Path, patience: float, cluster: Cluster) -> None:
        self._logs = logs
        self._patience = patience
        self._cluster = cluster
        self._allocation = read_allocation()
        self._processes: list[SlurmProcess] = []
        self._lost: set[int] = set()
        self._secrets: tempfile.TemporaryDirectory[str] | None = None

    async def __aenter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        self._secrets = tempfile.TemporaryDirectory(prefix=PREFIX, dir=self._logs.parent)
        self._point_to_run()
        return self

    def _point_to_run(self) -> None:
        """Write the path of the run directory where the job's script looks for it, should the job be requeued."""
        pointer = os.environ.get(RUN_POINTER)
        if pointer is not None:
            Path(pointer).write_text(f"{self._logs.parent.absolute()}\n")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stops = [process.stop(self._patience) for process in self._processes]
        try:
            await asyncio.shield(asyncio.gather(*stops))
        finally:
            assert self._secrets is not None
            self._secrets.cleanup()  # with the files of steps that have never begun

    @property
    def nodes(self) -> Sequence[Node]:
        return self._allocation.nodes(self._cluster, self._logs.parent)

    @property
    def lost_nodes(self) -> Collection[int]:
        return self._lost

    @property
    def shares_files(self) -> bool:
        return True  # the survey refuses nodes that do not see the run directory

    @property
    def logs(self) -> Path:
        return self._logs

    @property
    def processes(self) -> Sequence[SlurmProcess]:
        return self._processes

    async def start(
        self, role: str, command: Command, resources: Resources, on_line: Callable[[str], None] | None = None
    ) -> SlurmProcess:
        node = self.nodes[resources.node]
        if resources.node in self._lost:
            lost = next((str(process) for process in self._processes if process.role == role), role)
            raise ProcessDied(f"{lost} has nowhere to start again, because node {node.name} has failed")
        assert self._secrets is not None, "the launcher is not entered"
        environment = {
            **command.environment,
            **command.secrets,
            **granted_environment(resources),
            HOST: node.address,
        }
        file = write_secret_file(Path(self._secrets.name), role, environment)
        runner = (sys.executable, "-I", step_runner.__file__, file, *command.argv)
        srun = Command(
            argv=(*step([node.name]), "--unbuffered", f"--job-name={role}", *runner),
            environment={DEATH_SIGNAL: str(int(signal.SIGTERM))},
        )
        process = await self._start_step(role, srun, on_line, resources.node)
        self._processes = [p for p in self._processes if p.role != role or p.exit_code is None]
        self._processes.append(process)
        return process

    async def _start_step(
        self, role: str, srun: Command, on_line: Callable[[str], None] | None, node: int
    ) -> SlurmProcess:
        """Start srun with a pipe to its input, by which signals travel."""
        reading_end, writing_end = os.pipe()
        try:
            return SlurmProcess(
                role,
                await start_child(srun, reading_end),
                self._logs / f"{role}.log",
                on_line,
                node=node,
                node_name=self.nodes[node].name,
                stdin=writing_end,
                on_lost_node=self._lost.add,
            )
        except BaseException:
            os.close(writing_end)  # it belongs to no process
            raise
        finally:
            os.close(reading_end)
