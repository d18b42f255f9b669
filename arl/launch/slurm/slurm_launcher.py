"""Start the processes of a run on the nodes of a Slurm job, each as one step of it.

SLURM_JOB_ID, SLURM_JOB_NODELIST ─► names of nodes, this one first ─► each is looked at (arl.launch.nodes) ─► nodes
start ─► secret file ─► srun ─► runner on the node ─► the process        SlurmProcess watches srun ─► logs/<role>.log
end of the context ─► SIGTERM to all ─► SIGKILL after `patience` seconds

The controller runs on one of the nodes, and a process beside it is a step as well, so that Slurm counts what it uses.
When the controller dies, the kernel sends SIGTERM to each srun, which ends its step.
"""

import asyncio
import os
import platform
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from arl.config.cluster_section import Cluster
from arl.errors import InputError, ProcessDied, RunError
from arl.launch.base import Command, Launcher, Node, Process, Resources
from arl.launch.child import DEATH_SIGNAL
from arl.launch.network import HOST
from arl.launch.nodes import probed_nodes
from arl.launch.process import start_child
from arl.launch.slurm import step_runner
from arl.launch.slurm.job import JOB, RUN_POINTER, run_slurm
from arl.launch.slurm.step import SlurmProcess

PROBE_SECONDS = 300.0  # importing torch from a busy network file system takes minutes


class SlurmLauncher(Launcher):
    """Launch processes on the nodes of a Slurm job; see arl.launch.base.Launcher.

    Args:
        cluster: of the recipe.

    Raises:
        InputError: this process is in no job.
    """

    def __init__(self, logs: Path, patience: float, cluster: Cluster) -> None:
        super().__init__(logs, patience)
        self._cluster = cluster
        self._names = read_allocation()

    async def __aenter__(self) -> Self:
        self._point_to_run()
        return await super().__aenter__()

    def _point_to_run(self) -> None:
        """Write the path of the run directory where the job's script looks for it, should the job be requeued."""
        if RUN_POINTER in os.environ:
            Path(os.environ[RUN_POINTER]).write_text(f"{self._logs.parent.absolute()}\n")

    @property
    def nodes(self) -> Sequence[Node]:
        if len(self._names) < self._cluster.fewest_nodes:
            raise InputError(
                f"cluster.nodes {self._cluster.nodes}: job {os.environ[JOB]} has {len(self._names)} "
                f"({', '.join(self._names)}); ask Slurm for more nodes, or set cluster.min_nodes"
            )
        return probed_nodes(self._names, self._cluster, self._logs.parent, self._run_on_all)

    def _run_on_all(self, argv: Sequence[str]) -> str:
        """Run a command on each node, and return what all of them and srun have printed."""
        named = shlex.join(argv).replace(shlex.quote("{}"), '"$SLURMD_NODENAME"')
        done = run_slurm(*step(self._names), "/bin/sh", "-c", f"exec {named} 2>&1", seconds=PROBE_SECONDS)
        return done.stdout + done.stderr

    async def start(
        self, role: str, command: Command, resources: Resources, on_line: Callable[[str], None] | None = None
    ) -> Process:
        node = self.nodes[resources.node]
        if resources.node in self._lost:
            raise ProcessDied(f"{role} cannot be started: node {node.name} has failed")
        variables = {
            **command.environment,
            **command.secrets,
            **resources.environment,
            HOST: node.address,
        }
        file = self._write_secrets(role, variables)
        runner = (sys.executable, "-I", step_runner.__file__, file, *command.argv)
        srun = (*step([node.name]), "--unbuffered", f"--job-name={role}", *runner)
        dies_in_peace = {DEATH_SIGNAL: str(int(signal.SIGTERM))}
        process = SlurmProcess(
            role,
            await start_child(srun, dies_in_peace, stdin=asyncio.subprocess.PIPE),
            self._logs / f"{role}.log",
            on_line,
            node=resources.node,
            node_name=node.name,
            on_lost_node=self._lost.add,
        )
        self._remember(process)
        return process


def step(nodes: Sequence[str]) -> tuple[str, ...]:
    """Return the beginning of the command that starts one task on each of `nodes`.

    A task gets all that the job has on its node: steps share the cores, the memory and the GPUs.
    """
    return (
        "srun",
        "--overlap",
        "--mem=0",
        "--cpu-bind=none",
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes)}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(nodes)}",
        "--export=ALL",  # a job may have been submitted with NONE
        "--kill-on-bad-exit=0",
    )


def read_allocation(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the names of the nodes of the job in which this process runs, that of this process first.

    Raises:
        InputError: this process is in no job, or on none of its nodes, or Slurm's commands are not installed.
        RunError: scontrol does not read the names of the nodes, or does not answer.
    """
    if JOB not in environment:
        raise InputError(
            f"launcher slurm: this process is in no Slurm job ({JOB} is not set); `arl train RECIPE --launcher slurm` "
            "submits one"
        )
    nodes = environment["SLURM_JOB_NODELIST"]  # in short, as in n[1-3]
    done = run_slurm("scontrol", "show", "hostnames", nodes)
    if done.returncode != 0:
        raise RunError(f"launcher slurm: scontrol cannot read the nodes {nodes!r}: {done.stderr.strip()}")
    names = done.stdout.split()
    here = environment.get("SLURMD_NODENAME", platform.node().partition(".")[0])
    if here not in names:
        raise InputError(
            f"launcher slurm: this machine, {here}, is not among the nodes of job {environment[JOB]} "
            f"({', '.join(names)}), and the controller must run on one of them; put "
            f"`srun --overlap --nodes=1 --ntasks=1 --nodelist={names[0]} --pty` before the command"
        )
    return [here, *(name for name in names if name != here)]
