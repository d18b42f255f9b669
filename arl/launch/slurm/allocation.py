"""Find the nodes of the Slurm job in which this process runs, look at them, and say how a step is started on one.

SLURM_JOB_ID, SLURM_JOB_NODELIST ─► Allocation: names of nodes, this one first ─► srun …
"""

import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from arl.config.cluster_section import Cluster
from arl.errors import InputError, RunError
from arl.launch.base import Node
from arl.launch.node_probe import probed_nodes

JOB = "SLURM_JOB_ID"
NODES = "SLURM_JOB_NODELIST"
ANSWER_SECONDS = 120.0  # for a command of Slurm
PROBE_SECONDS = 300.0  # importing torch from a busy network file system takes minutes
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


def run_slurm(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of Slurm, and return what it says and its exit code.

    Raises:
        InputError: it is not installed.
        RunError: it does not answer.
    """
    require(command[0])
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise RunError(
            f"launcher slurm: `{' '.join(command)}` has not answered within {ANSWER_SECONDS:.0f} s; see `squeue --me` "
            "and `sdiag`, and try again"
        ) from error


def step(nodes: Sequence[str]) -> tuple[str, ...]:
    """Return the beginning of the command that starts one task on each of `nodes`."""
    return (
        "srun",
        *SHARING,
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes)}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(nodes)}",
        "--export=ALL",  # a job may have been submitted with NONE
        "--kill-on-bad-exit=0",
    )


@dataclass(frozen=True)
class Allocation:
    """Hold the nodes of a job.

    Args:
        job: its id.
        names: of all nodes, that of this process first.
    """

    job: str
    names: tuple[str, ...]

    def nodes(self, cluster: Cluster, run: Path) -> list[Node]:
        """Look at the nodes of the job.

        Args:
            run: directory of the run, which need not exist yet.

        Raises:
            InputError: a node cannot take part, or there are fewer nodes than the recipe needs.
        """
        if len(self.names) < cluster.fewest_nodes:
            raise InputError(
                f"cluster.nodes {cluster.nodes}: job {self.job} has {len(self.names)} ({', '.join(self.names)}); ask "
                "Slurm for more nodes, or set cluster.min_nodes"
            )
        return probed_nodes(self.names, cluster, run, self._run_on_all)

    def _run_on_all(self, argv: Sequence[str]) -> str:
        """Run a command on each node, and return what all of them and srun have printed."""
        begin = step(self.names)
        named = shlex.join(argv).replace(shlex.quote("{}"), '"$SLURMD_NODENAME"')
        try:
            done = subprocess.run(
                [*begin, "/bin/sh", "-c", f"exec {named}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=PROBE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise InputError(
                f"launcher slurm: the nodes {', '.join(self.names)} have not answered within {PROBE_SECONDS:.0f} s; "
                f"try `{' '.join(begin)} hostname`"
            ) from error
        return done.stdout


def read_allocation(environment: Mapping[str, str] = os.environ) -> Allocation:
    """Read the nodes of the job from the environment of this process.

    Raises:
        InputError: this process is in no job, or on none of its nodes, or Slurm's commands are not installed.
        RunError: scontrol does not read the names of the nodes.
    """
    if JOB not in environment:
        raise InputError(
            f"launcher slurm: this process is in no Slurm job ({JOB} is not set); `arl train RECIPE --launcher slurm` "
            "submits one"
        )
    require("srun")
    job = environment[JOB]
    names = _expand(environment[NODES])
    here = environment.get("SLURMD_NODENAME", platform.node().partition(".")[0])
    if here not in names:
        raise InputError(
            f"launcher slurm: this machine, {here}, is not among the nodes of job {job} ({', '.join(names)}), and the "
            "controller must run on one of them; put "
            f"`srun --overlap --nodes=1 --ntasks=1 --nodelist={names[0]} --pty` before the command"
        )
    return Allocation(job, (here, *(name for name in names if name != here)))


def _expand(nodes: str) -> list[str]:
    """Return the names that Slurm writes in short, as in n[1-3].

    Raises:
        InputError: there is no scontrol.
        RunError: it cannot read them, or does not answer.
    """
    done = run_slurm("scontrol", "show", "hostnames", nodes)
    if done.returncode != 0:
        raise RunError(f"launcher slurm: scontrol cannot read the nodes {nodes!r}: {done.stderr.strip()}")
    return done.stdout.split()
