"""Run a real Ray cluster on machines of namespaces: the head on the first, a node on each of the others.

    n1: gcs_server, raylet, the driver      n2: raylet, workers      n3: raylet, workers

Nothing is shared but the file system: every machine has a session directory and shared memory of its own, and both go
with it. Who speaks to the cluster knows its token. Nodes are found dead within seconds, as a test cannot wait longer.
"""

import contextlib
import importlib.util
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from tests.cluster.machines import Machine, machines, missing_for_machines

PORT = 6379
CORES = 2  # of a node, as Ray counts
OBJECT_STORE = 80_000_000  # bytes, little more than the least that Ray takes
START_SECONDS = 60.0
STARTED = "Ray runtime started."
# Ray asks every node once a period, and gives it up after so many questions without an answer.
HEALTH_CHECKS = {
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
        self._dead: set[str] = set()

    @property
    def environment(self) -> dict[str, str]:
        """Return what Ray's processes and drivers need."""
        return {
            "RAY_TMPDIR": "/run",  # which each machine has for itself
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.directory / "ray_token"),
            "RAY_USAGE_STATS_ENABLED": "0",
            **HEALTH_CHECKS,
        }

    @property
    def address(self) -> str:
        """Return where the head listens."""
        return f"{self.head.address}:{PORT}"

    def start(self) -> None:
        """Start the head, then all nodes at once, and wait until each has joined."""
        self._start_ray(self.head, "--head", f"--port={PORT}", "--include-dashboard=false")
        self._wait_until_started(self.head)
        others = [machine for machine in self.nodes.values() if machine is not self.head]
        for machine in others:
            self._start_ray(machine, f"--address={self.address}")
        for machine in others:
            self._wait_until_started(machine)

    def run(
        self, *argv: str, seconds: float = 120.0, check: bool = True, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the head to its end."""
        variables = {**self.environment, **(environment or {})}
        return self.head.run(*argv, seconds=seconds, check=check, environment=variables)

    def start_on_head(
        self, argv: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command on the head whose output goes to `log`."""
        return self.head.start_process(argv, log, {**self.environment, **(environment or {})})

    def kill(self, name: str) -> None:
        """Kill a node with everything on it, as a power failure does; Ray notices after its health checks."""
        self.nodes[name].kill()
        self._dead.add(name)

    def revive(self, name: str) -> None:
        """Switch a killed node on again, and wait until it has joined."""
        machine = self.nodes[name]
        machine.start()
        self._dead.remove(name)
        self._log(machine).unlink()
        self._start_ray(machine, f"--address={self.address}")
        self._wait_until_started(machine)

    def processes_of_arl(self) -> list[psutil.Process]:
        """Return what runs on any node and is no part of Ray: processes of a run, and what they have started."""
        found = []
        for name, machine in self.nodes.items():
            if name not in self._dead:
                found += [process for process in machine.processes() if _is_of_arl(process)]
        return found

    def _start_ray(self, machine: Machine, *flags: str) -> None:
        common = (
            "--block",
            "--disable-usage-stats",
            f"--node-ip-address={machine.address}",
            f"--node-name={machine.name}",
            f"--num-cpus={CORES}",
            f"--object-store-memory={OBJECT_STORE}",
            "--include-log-monitor=false",
        )
        ray = (sys.executable, "-m", "ray.scripts.scripts", "start")
        machine.start_process([*ray, *common, *flags], self._log(machine), self.environment)

    def _wait_until_started(self, machine: Machine) -> None:
        end = time.monotonic() + START_SECONDS
        log = self._log(machine)
        while STARTED not in log.read_text():
            assert time.monotonic() < end, f"{machine.name} has not joined:\n{log.read_text()}"
            time.sleep(0.1)

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
