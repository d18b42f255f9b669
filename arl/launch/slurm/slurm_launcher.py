"""Start the processes of a run on the nodes of a Slurm job, each as one step of it.

start ─► step file ─► srun ─► runner on the node ─► the process         SlurmProcess watches srun ─► logs/<role>.log
end of the context ─► SIGTERM to all ─► SIGKILL after `patience` seconds

The controller runs on one of the nodes, and a process beside it is a step as well, so that Slurm counts what it uses.
"""

import asyncio
import contextlib
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
from arl.launch.slurm import step_runner
from arl.launch.slurm.allocation import Allocation, read_allocation
from arl.launch.slurm.batch_script import RUN_POINTER
from arl.launch.slurm.step_file import SILENCE, write_step_file
from arl.launch.slurm.step_process import SlurmProcess
from arl.launch.slurm.survey import survey

BEAT_SECONDS = SILENCE / 12
STEPS = "steps-"  # begins the name of a directory beside that of the logs, for files that nobody else may read

_nodes: dict[tuple[str, str], list[Node]] = {}  # of a job and a recipe's section; looked at once, which takes seconds


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
        self._allocation: Allocation = read_allocation()
        self._processes: list[SlurmProcess] = []
        self._lost: set[int] = set()
        self._opened = contextlib.ExitStack()
        self._steps: Path | None = None
        self._beating: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        steps = tempfile.TemporaryDirectory(prefix=STEPS, dir=self._logs.parent)
        self._steps = Path(self._opened.enter_context(steps))
        self._point_to_run()
        self._beating = asyncio.create_task(self._beat(), name="heartbeat of steps")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stops = [process.stop(self._patience) for process in self._processes]
        try:
            await asyncio.shield(asyncio.gather(*stops))
        finally:
            assert self._beating is not None
            self._beating.cancel()
            self._opened.close()  # with the files of steps that have never begun

    @property
    def nodes(self) -> Sequence[Node]:
        key = (self._allocation.job, self._cluster.model_dump_json())
        if key not in _nodes:
            _nodes[key] = survey(self._allocation, self._cluster, self._logs.parent)
        return _nodes[key]

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
        environment = {
            **granted_environment(resources),
            HOST: node.address,
        }
        assert self._steps is not None, "the launcher is not entered"
        file = write_step_file(self._steps, role, command, environment, node.address)
        process = await self._start_step(role, node.name, file, on_line, resources.node)
        self._processes = [p for p in self._processes if p.role != role or p.exit_code is None]
        self._processes.append(process)
        return process

    async def _start_step(
        self, role: str, node: str, file: Path, on_line: Callable[[str], None] | None, number: int
    ) -> SlurmProcess:
        """Start srun, which ends its step when this process dies."""
        runner = (sys.executable, "-I", step_runner.__file__, str(file))
        srun = Command(
            argv=(*self._allocation.step([node]), "--unbuffered", f"--job-name={role}", *runner),
            environment={DEATH_SIGNAL: str(int(signal.SIGTERM))},
        )
        reading_end, writing_end = os.pipe()
        os.set_blocking(writing_end, False)
        try:
            return SlurmProcess(
                role,
                await start_child(srun, reading_end),
                self._logs / f"{role}.log",
                on_line,
                node=number,
                node_name=node,
                stdin=writing_end,
                on_lost_node=self._lost.add,
            )
        except BaseException:
            os.close(writing_end)  # it belongs to no process
            raise
        finally:
            os.close(reading_end)

    def _point_to_run(self) -> None:
        """Write the path of the run directory where the job's script looks for it, should the job be requeued."""
        pointer = os.environ.get(RUN_POINTER)
        if pointer is not None:
            Path(pointer).write_text(f"{self._logs.parent.absolute()}\n")

    async def _beat(self) -> None:
        """Tell every runner again and again that this process lives.

        Consumes nothing; waits for time; the end of the context ends it.
        """
        while True:
            for process in self._processes:
                process.beat()
            await asyncio.sleep(BEAT_SECONDS)
