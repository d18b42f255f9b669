"""Run a real Ray cluster on machines of namespaces: the head on the first, a node on each of the others.

    n1: gcs_server, raylet, the driver      n2: raylet, workers      n3: raylet, workers

Nothing is shared but the file system: every machine has a session directory and shared memory of its own, and both go
with it. Who speaks to the cluster knows its token. Nodes are found dead within seconds, as a test cannot wait longer.
"""

import contextlib
import importlib.util
import secrets
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from tests.cluster.machines import Machine, machines, missing_for_machines
from tests.cluster.slurm_cluster import wait_for

PORT = 6379
START_SECONDS = 60.0
STARTED = "Ray runtime started."
# Ray asks every node once a period, and gives it up after so many questions without an answer.
ENVIRONMENT = {
    "RAY_TMPDIR": "/run",  # which each machine has for itself
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "2",
}


def missing_for_ray() -> str | None:
    """Return why this host cannot run a Ray cluster; None: it can."""
    if importlib.util.find_spec("ray") is None:
        return "Ray is not installed: pip install -e '.[ray]'"
    return missing_for_machines()


class RayCluster:
    """Hold the machines of a Ray cluster; commands run on the head."""

    def __init__(self, nodes: dict[str, Machine], directory: Path) -> None:
        self.nodes = nodes
        self.directory = directory
        self.head = next(iter(nodes.values()))

    @property
    def address(self) -> str:
        """Return where the head listens."""
        return f"{self.head.address}:{PORT}"

    def start(self) -> None:
        """Start the head, then all nodes at once, and wait until each has joined."""
        for machine in self.nodes.values():
            machine.environment = {**ENVIRONMENT, "RAY_AUTH_TOKEN_PATH": str(self.directory / "ray_token")}
        self._start_ray(self.head, "--head", f"--port={PORT}", "--include-dashboard=false")
        self._wait_until_started(self.head)
        others = [machine for machine in self.nodes.values() if machine is not self.head]
        for machine in others:
            self._start_ray(machine, f"--address={self.address}")
        for machine in others:
            self._wait_until_started(machine)

    def revive(self, name: str) -> None:
        """Switch a killed node on again, and wait until it has joined."""
        machine = self.nodes[name]
        machine.start()
        self._log(machine).unlink()
        self._start_ray(machine, f"--address={self.address}")
        self._wait_until_started(machine)

    def processes_of_arl(self) -> list[psutil.Process]:
        """Return what runs on any node and is no part of Ray: processes of a run, and what they have started."""
        return [process for machine in self.nodes.values() for process in machine.processes() if _is_of_arl(process)]

    def _start_ray(self, machine: Machine, *flags: str) -> None:
        common = "--block --disable-usage-stats --include-log-monitor=false --num-cpus=2"
        own = (f"--node-ip-address={machine.address}", f"--node-name={machine.name}")
        store = "--object-store-memory=80000000"  # bytes, little more than the least that Ray takes
        ray = (sys.executable, "-m", "ray.scripts.scripts", "start", *common.split(), *own, store, *flags)
        machine.start_process(ray, self._log(machine))

    def _wait_until_started(self, machine: Machine) -> None:
        wait_for(lambda: STARTED in self._log(machine).read_text(), f"{machine.name} to join", START_SECONDS)

    def _log(self, machine: Machine) -> Path:
        return self.directory / f"ray.{machine.name}.log"


def _is_of_arl(process: psutil.Process) -> bool:
    try:
        command = " ".join(process.cmdline())
    except psutil.Error:  # it has ended meanwhile
        return False
    return "arl." in command or "sleep" in command


@contextlib.contextmanager
def ray_cluster(directory: Path, nodes: Sequence[str] = ("n1", "n2", "n3")) -> Iterator[RayCluster]:
    """Yield a running cluster whose files are in `directory`; the first node is the head."""
    directory.mkdir(parents=True, exist_ok=True)
    token = directory / "ray_token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    with machines(nodes, directory) as made:
        cluster = RayCluster(made, directory)
        cluster.start()
        yield cluster
