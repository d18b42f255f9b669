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
import re
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from arl.config.cluster_section import Cluster
from arl.errors import InputError, ProcessDied
from arl.launch.base import Command, Launcher, Node, OnLine, Process, Resources
from arl.launch.child import DEATH_SIGNAL
from arl.launch.network import HOST
from arl.launch.nodes import probed_nodes
from arl.launch.process import OUTPUT_SECONDS, LocalProcess, PipedChild, Role, start_child
from arl.launch.slurm import step_runner
from arl.launch.slurm.job import JOB, RUN_POINTER, run_slurm
from arl.launch.slurm.step_runner import MARK
from arl.launch.spawn import signal_all

# From SIGKILL until srun is ended, too. It is longer than a network takes, and than a kernel takes to free the memory
# of a large process.
REMOTE_SECONDS = 10.0
# At the end of a line that the process may have begun.
RUNNER_LINE = re.compile(rf"{MARK}(?P<name>pid|ended) (?P<number>-?\d+)$")
NODE_LOST = re.compile("^srun: error: .*(Node failure on|Requested node configuration|Required node not available)")
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
        pointer = os.environ.get(RUN_POINTER)
        if pointer is not None:  # the job's script reads it, should the job be requeued
            Path(pointer).write_text(f"{self.logs.parent.absolute()}\n")  # noqa: ASYNC240 - one line
        return await super().__aenter__()

    @property
    def nodes(self) -> Sequence[Node]:
        if len(self._names) < self._cluster.fewest_nodes:
            raise InputError(
                f"cluster.nodes {self._cluster.nodes}: job {os.environ[JOB]} has {len(self._names)} "
                f"({', '.join(self._names)}); ask Slurm for more nodes, or set cluster.min_nodes"
            )
        return probed_nodes(self._names, self._cluster, self.logs.parent, self._run_on_all)

    def _run_on_all(self, argv: Sequence[str]) -> str:
        """Run a command on each node, and return what all of them and srun have printed."""
        named = shlex.join(argv).replace(shlex.quote("{}"), '"$SLURMD_NODENAME"')
        done = run_slurm(*step(self._names), "/bin/sh", "-c", f"exec {named} 2>&1", seconds=PROBE_SECONDS)
        return done.stdout + done.stderr

    async def start(self, role: str, command: Command, resources: Resources, on_line: OnLine = None) -> Process:
        node = self.nodes[resources.node]
        if resources.node in self.lost_nodes:
            raise ProcessDied(f"{role} cannot be started: node {node.name} has failed")
        variables = {**command.environment, **command.secrets, **resources.environment, HOST: node.address}
        file = self._write_secrets(role, variables)
        runner = (sys.executable, "-I", step_runner.__file__, file, *command.argv)
        srun = (*step([node.name]), "--unbuffered", f"--job-name={role}", *runner)
        dies_in_peace = {DEATH_SIGNAL: str(int(signal.SIGTERM))}
        child = await start_child(srun, dies_in_peace, stdin=asyncio.subprocess.PIPE)
        own = Role(role, self.logs / f"{role}.log", on_line, resources.node, node.name)
        process = SlurmProcess(own, child, self.lost_nodes)
        self._remember(process)
        return process


class SlurmProcess(LocalProcess):
    """Watch a step of a Slurm job.

    Args:
        child: the local srun; signals go through its standard input.
        lost: gets the number of the node when srun says that it cannot be used any more.
    """

    def __init__(self, role: Role, child: PipedChild, lost: set[int]) -> None:
        super().__init__(role, child)
        self._lost = lost
        self._remote_pid = 0
        self._remote_code: int | None = None
        self._node_has_failed = False

    @property
    def pid(self) -> int:
        return self._remote_pid

    @property
    def exit_code(self) -> int | None:
        return None if self._process.returncode is None else self._remote_code

    async def _wait(self) -> object:
        """Wait for srun and for its output, whose last line is the exit code of the process."""
        code = await self._process.wait()
        if self._remote_code is None:
            await asyncio.wait({self._copying}, timeout=OUTPUT_SECONDS)
        if self._remote_code is None:  # its runner was killed as well, or never began; srun says 0 if the node fails
            self._remote_code = -signal.SIGKILL if self._node_has_failed or code <= 0 else code
            if self._remote_code > 128:  # as a shell says which signal has ended it
                self._remote_code = 128 - self._remote_code
        return self._remote_code

    def _how_it_ended(self) -> str:
        return f"was lost: node {self._node_name} has failed" if self._node_has_failed else super()._how_it_ended()

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal through the runner. If SIGKILL does not end it in time, its node cannot be reached."""
        if self._process.returncode is not None:
            return
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d\n" % number)
        if number is signal.SIGKILL:
            asyncio.get_running_loop().call_later(REMOTE_SECONDS, self._end_srun, signal.SIGTERM)

    def _end_srun(self, number: signal.Signals) -> None:
        """End the local srun: Slurm ends the step itself, as soon as it reaches the node."""
        if self._process.returncode is None:
            signal_all(self._process, number)
            asyncio.get_running_loop().call_later(REMOTE_SECONDS, self._end_srun, signal.SIGKILL)

    def _take_line(self, line: str) -> None:
        found = RUNNER_LINE.search(line)
        if found is not None and found["name"] == "pid":
            self._remote_pid = int(found["number"])
        elif found is not None:
            self._remote_code = int(found["number"])
        elif NODE_LOST.search(line):
            self._node_has_failed = True
            self._lost.add(self.node)
        super()._take_line(line)


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
        RunError: scontrol does not answer.
    """
    if JOB not in environment:
        raise InputError(
            f"launcher slurm: this process is in no Slurm job ({JOB} is not set); `arl train RECIPE --launcher slurm` "
            "submits one"
        )
    short = environment["SLURM_JOB_NODELIST"]  # as in n[1-3]
    names = run_slurm("scontrol", "show", "hostnames", short).stdout.split()
    here = environment.get("SLURMD_NODENAME", platform.node().partition(".")[0])
    if here not in names:
        raise InputError(
            f"launcher slurm: this machine, {here}, is not among the nodes of job {environment[JOB]} "
            f"({', '.join(names)}), and the controller must run on one of them; put "
            f"`srun --overlap --nodes=1 --ntasks=1 --nodelist={names[0]} --pty` before the command"
        )
    return [here, *(name for name in names if name != here)]
