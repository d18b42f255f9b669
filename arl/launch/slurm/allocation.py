"""Find the nodes of the Slurm job in which this process runs, and say how a step is started on one of them.

SLURM_JOB_ID, SLURM_JOB_NODELIST ─► Allocation: names of nodes ─► srun …
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from arl.errors import InputError, RunError

JOB = "SLURM_JOB_ID"
NODES = "SLURM_JOB_NODELIST"
EXPAND_SECONDS = 60.0  # for scontrol to expand the names of nodes, which takes no time
NO_SLURM = (
    "launcher slurm: {program} is not found; run this where Slurm's commands are installed, such as a login node, or "
    "use `launcher: local` on one machine"
)
# A step gets all that the job has on its node: steps share the cores, the memory and the GPUs.
SHARING = ("--overlap", "--mem=0", "--cpu-bind=none")


def in_allocation() -> bool:
    """Return whether this process runs within a Slurm job."""
    return JOB in os.environ


def require(program: str) -> None:
    """Check that a command of Slurm is installed.

    Raises:
        InputError: it is not.
    """
    if shutil.which(program) is None:
        raise InputError(NO_SLURM.format(program=program))


@dataclass(frozen=True)
class Allocation:
    """Hold the nodes of a job.

    Args:
        job: its id.
        names: of all nodes.
    """

    job: str
    names: tuple[str, ...]

    def starting_with(self, name: str) -> list[str]:
        """Return the names of all nodes, `name` first."""
        return [name, *(other for other in self.names if other != name)]

    def step(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """Return the beginning of the command that starts one task on each of `nodes`."""
        return (
            "srun",
            *SHARING,
            f"--nodes={len(nodes)}",
            f"--ntasks={len(nodes)}",
            "--ntasks-per-node=1",
            f"--nodelist={','.join(nodes)}",
            "--export=NONE",  # an environment would cross the network in the clear
            "--kill-on-bad-exit=0",
        )


def read_allocation(environment: Mapping[str, str] = os.environ) -> Allocation:
    """Read the nodes of the job from the environment of this process.

    Raises:
        InputError: this process is in no job, or Slurm's commands are not installed.
        RunError: scontrol does not read the names of the nodes.
    """
    if JOB not in environment:
        raise InputError(
            f"launcher slurm: this process is in no Slurm job ({JOB} is not set); `arl train RECIPE --launcher slurm` "
            "submits one"
        )
    require("srun")
    return Allocation(environment[JOB], _expand(environment[NODES]))


def _expand(nodes: str) -> tuple[str, ...]:
    """Return the names that Slurm writes in short, as in n[1-3].

    Raises:
        InputError: there is no scontrol.
        RunError: it cannot read them, or does not answer.
    """
    require("scontrol")
    command = ["scontrol", "show", "hostnames", nodes]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=EXPAND_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise RunError(
            f"launcher slurm: `{' '.join(command)}` has not answered within {EXPAND_SECONDS:.0f} s; try it by hand"
        ) from error
    if done.returncode != 0:
        raise RunError(f"launcher slurm: scontrol cannot read the nodes {nodes!r}: {done.stderr.strip()}")
    return tuple(done.stdout.split())


def _node_name() -> str:
    """Return the name of this machine, as Slurm knows it."""
    return os.environ.get("SLURMD_NODENAME", platform.node().partition(".")[0])


def this_node(allocation: Allocation) -> str:
    """Return the name of the node on which this process runs.

    Raises:
        InputError: it is none of the job's.
    """
    name = _node_name()
    if name not in allocation.names:
        raise InputError(
            f"launcher slurm: this machine, {name}, is not among the nodes of job {allocation.job} "
            f"({', '.join(allocation.names)}), and the controller must run on one of them; put "
            f"`srun --overlap --nodes=1 --ntasks=1 --nodelist={allocation.names[0]} --pty` before the command"
        )
    return name
