"""Run a real Slurm on machines of namespaces: a controller daemon on one, a node daemon on each of the others.

    head: munged, slurmctld      n1: munged, slurmd      n2: munged, slurmd      …

Everything is in one directory, which all machines see, and ends with the machines. Nodes are found dead within
seconds, as a test cannot wait for minutes.
"""

import contextlib
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from tests.cluster.machines import Machine, machines, missing_for_machines

HEAD = "head"
DAEMONS = ("munged", "slurmd")
PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "munged")
NODE_SECONDS = 5  # without an answer, after which a node is down
CORES = 8  # of a node, as Slurm counts; the machine's own do not matter, since tasks are not bound to cores
CONFIGURATION = """
ClusterName=arl
SlurmctldHost={head}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool.%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.%n.log
SlurmctldDebug=verbose
SlurmdDebug=verbose
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=2,batch_sched_delay=0
SlurmdParameters=config_overrides
SlurmdTimeout={seconds}
MessageTimeout=5
TCPTimeout=2
BatchStartTimeout=10
KillWait=5
ReturnToService=2
MpiDefault=none
NodeName={nodes} CPUs={cores} RealMemory=1000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing_for_slurm() -> str | None:
    """Return why this host cannot run a Slurm cluster; None: it can."""
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent:
        return f"{', '.join(absent)} not installed: apt-get install --no-install-recommends slurm-wlm munge"
    return missing_for_machines()


class SlurmCluster:
    """Hold a head and nodes; commands run on the head, as on a login node."""

    def __init__(self, head: Machine, nodes: dict[str, Machine], directory: Path) -> None:
        self.head = head
        self.nodes = nodes
        self.directory = directory

    @property
    def environment(self) -> dict[str, str]:
        """Return what Slurm's commands need."""
        return {"SLURM_CONF": str(self.directory / "slurm.conf")}

    def start(self) -> None:
        """Start all daemons, and wait until every node is idle."""
        self._start_munge(self.head)
        self.head.start_process(["slurmctld", "-D"], self.directory / "slurmctld.out", self.environment)
        for name in self.nodes:
            self._start_node_daemon(name)
        for name in self.nodes:
            self.wait_for_node(name, "idle")

    def run(
        self, *argv: str, seconds: float = 60.0, check: bool = True, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the head to its end."""
        variables = {**self.environment, **(environment or {})}
        return self.head.run(*argv, seconds=seconds, check=check, environment=variables)

    def kill(self, name: str) -> None:
        """Kill a node with everything on it; Slurm notices after its timeout."""
        self.nodes[name].kill()

    def revive(self, name: str) -> None:
        """Switch a killed node on again, and wait until Slurm uses it."""
        self.nodes[name].start()
        self._start_node_daemon(name)
        self.wait_for_node(name, "idle")

    def node_state(self, name: str) -> str:
        """Return the state that Slurm says a node is in, such as idle or down*; empty if it does not answer."""
        return self.run("sinfo", "--noheader", "--nodes", name, "--format", "%T", check=False).stdout.strip()

    def wait_for_node(self, name: str, state: str, seconds: float = 60.0) -> None:
        """Wait until a node is in a state."""
        wait_for(lambda: self.node_state(name) == state, f"{name} to be {state}", seconds)

    def job_state(self, job: str) -> str:
        """Return the state of a job, such as RUNNING; empty if Slurm does not answer."""
        shown = self.run("scontrol", "show", "job", job, "--oneliner", check=False).stdout
        return shown.partition("JobState=")[2].partition(" ")[0]

    def processes_of_jobs(self, name: str) -> list[psutil.Process]:
        """Return what runs on a node besides its process 1 and the daemons of the cluster."""
        machine = self.nodes[name]
        return [process for process in machine.processes() if process.pid != machine.pid and not _is_daemon(process)]

    def start_now(self, job: str) -> None:
        """Let a requeued job start soon; Slurm holds it back for two minutes, until its processes must be dead.

        Not at once, because a node that has just come back refuses what is as old as the order to end the job there.
        """
        self.run("scontrol", "update", f"JobId={job}", "StartTime=now+3")

    def _start_munge(self, machine: Machine) -> None:
        machine.run("install", "-d", "-m", "755", "/run/munge")
        key = self.directory / "munge.key"
        machine.run(
            "munged", "--force", f"--key-file={key}", "--pid-file=/run/munge/pid", "--log-file=/run/munge/log",
            "--seed-file=/run/munge/seed",
        )  # fmt: skip

    def _start_node_daemon(self, name: str) -> None:
        machine = self.nodes[name]
        self._start_munge(machine)
        machine.start_process(["slurmd", "-D"], self.directory / f"slurmd.{name}.out", self.environment)


def _is_daemon(process: psutil.Process) -> bool:
    try:
        return process.name() in DAEMONS
    except psutil.NoSuchProcess:  # it has just ended, and so is no problem
        return True


def wait_for(is_so: object, what: str, seconds: float) -> None:
    """Ask again and again until `is_so()` is true."""
    assert callable(is_so)
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.1)


@contextlib.contextmanager
def slurm_cluster(directory: Path, nodes: Sequence[str] = ("n1", "n2", "n3")) -> Iterator[SlurmCluster]:
    """Yield a running cluster whose files are in `directory`."""
    (directory / "state").mkdir(parents=True)
    key = directory / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    with machines([HEAD, *nodes], directory) as made:
        head = made.pop(HEAD)
        configuration = CONFIGURATION.format(
            head=HEAD,
            address=head.address,
            directory=directory,
            seconds=NODE_SECONDS,
            cores=CORES,
            nodes=",".join(nodes),
        )
        (directory / "slurm.conf").write_text(configuration)
        cluster = SlurmCluster(head, made, directory)
        cluster.start()
        yield cluster
