"""Run a real Slurm on machines of namespaces: a controller daemon on one, a node daemon on each of the others.

    head: munged, slurmctld      n1: munged, slurmd      n2: munged, slurmd      …

Everything is in one directory, which all machines see, and ends with the machines. Nodes are found dead within
seconds, as a test cannot wait for minutes.
"""

import contextlib
import functools
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from tests.cluster.machines import Machine, machines, missing_for_machines

HEAD = "head"
DAEMONS = ("munged", "slurmd")
PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "munged")
# A node is down after 5 s without an answer. Its number of cores does not matter, since tasks are not bound to them.
CONFIGURATION = """
ClusterName=arl
SlurmctldHost=head({address})
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
SlurmdTimeout=5
MessageTimeout=5
TCPTimeout=2
BatchStartTimeout=10
KillWait=5
ReturnToService=2
MpiDefault=none
NodeName={nodes} CPUs=8 RealMemory=1000
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
        self.run = head.run
        self.nodes = nodes
        self.directory = directory

    def start(self) -> None:
        """Start all daemons, and wait until every node is idle."""
        for machine in (self.head, *self.nodes.values()):
            machine.environment = {"SLURM_CONF": str(self.directory / "slurm.conf")}
        self._start_munge(self.head)
        self.head.start_process(["slurmctld", "-D"], self.directory / "slurmctld.out")
        for name in self.nodes:
            self._start_node_daemon(name)
        for name in self.nodes:
            self._wait_for_node(name)

    def _wait_for_node(self, name: str) -> None:
        state = ("sinfo", "--noheader", "--nodes", name, "--format", "%T")
        wait_for(lambda: self.run(*state, check=False).stdout.strip() == "idle", f"{name} to be idle", 60)

    def revive(self, name: str) -> None:
        """Switch a killed node on again, and wait until Slurm uses it."""
        self.nodes[name].start()
        self._start_node_daemon(name)
        self._wait_for_node(name)

    def job_state(self, job: str) -> str:
        """Return the state of a job, such as RUNNING; empty if Slurm does not answer."""
        shown = self.run("scontrol", "show", "job", job, "--oneliner", check=False).stdout
        return shown.partition("JobState=")[2].partition(" ")[0]

    def wait_for_idle_nodes(self) -> None:
        """Wait until nothing but process 1 and Slurm's daemons is left on any node that is on."""
        for machine in self.nodes.values():
            wait_for(functools.partial(_is_idle, machine), f"{machine.name} to be idle", 30)

    def start_now(self, job: str) -> None:
        """Let a requeued job start soon; Slurm holds it back for two minutes, until its processes must be dead.

        Not at once, because a node that has just come back refuses what is as old as the order to end the job there.
        """
        self.run("scontrol", "update", f"JobId={job}", "StartTime=now+3")

    def _start_munge(self, machine: Machine) -> None:
        machine.run("install", "-d", "-m", "755", "/run/munge")
        own = "--pid-file=/run/munge/pid --log-file=/run/munge/log --seed-file=/run/munge/seed"
        machine.run("munged", "--force", f"--key-file={self.directory}/munge.key", *own.split())

    def _start_node_daemon(self, name: str) -> None:
        machine = self.nodes[name]
        self._start_munge(machine)
        machine.start_process(["slurmd", "-D"], self.directory / f"slurmd.{name}.out")


def _is_idle(machine: Machine) -> bool:
    try:
        return all(process.pid == machine.pid or process.name() in DAEMONS for process in machine.processes())
    except psutil.NoSuchProcess:  # it has just ended
        return False


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
        configuration = CONFIGURATION.format(address=head.address, directory=directory, nodes=",".join(nodes))
        (directory / "slurm.conf").write_text(configuration)
        cluster = SlurmCluster(head, made, directory)
        cluster.start()
        yield cluster
