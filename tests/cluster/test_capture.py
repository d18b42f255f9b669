"""A run over several nodes keeps its secrets: whoever records all links of the cluster finds none of them."""

import shutil
import threading
import time
from pathlib import Path

import psutil
import pytest

from arl.launch.child import RUN_KEY
from arl.launch.tls import PRIVATE_KEY, TLS
from arl.train.channel import ADDRESS
from arl.train.channel_access import client_keys, server_keys
from tests.cluster.capture import captured, found_in, streams
from tests.cluster.faults import processes_of
from tests.cluster.faulty_run import FaultyRun
from tests.cluster.machines import Machine, machines
from tests.cluster.slurm_cluster import missing_for_slurm, slurm_cluster

NO_TCPDUMP = None if shutil.which("tcpdump") else "tcpdump not installed: apt-get install tcpdump"
MISSING = missing_for_slurm() or NO_TCPDUMP
pytestmark = [pytest.mark.slow, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]
STEPS = 10


class Spy(threading.Thread):
    """Read from the memory of a run's processes, as root of their nodes may, what a stranger must never see."""

    def __init__(self, nodes: dict[str, Machine], run: Path) -> None:
        super().__init__(daemon=True)
        self._nodes = nodes
        self._run = run
        self.secrets: dict[str, str] = {}
        self.trainer_port = 0

    def run(self) -> None:
        """Look for a trainer rank until there is one."""
        while not self.secrets:
            for _, _, process in processes_of(self._nodes, "trainer"):
                self._read(process)
            time.sleep(0.1)

    def _read(self, process: psutil.Process) -> None:
        try:
            environment = process.environ()
        except psutil.Error:  # it has just ended
            return
        key = environment.get(RUN_KEY)
        if key is None:
            return
        self.trainer_port = int(environment[ADDRESS].rpartition(":")[2])
        secrets = {"run key": key}
        for name, keys in (("server", server_keys(key)), ("client", client_keys(key))):
            secrets[f"CURVE secret of the {name}"] = keys.secret.decode()
        lines = (Path(environment[TLS]) / PRIVATE_KEY).read_text().splitlines()
        self.secrets = secrets | {f"line {number} of the private key": line for number, line in enumerate(lines[1:-1])}


def engine_ports(run: Path) -> set[int]:
    """Return the ports on which the engines have listened, as their logs say."""
    ports = set()
    for log in (run / "logs").glob("engine-*.log"):
        ready = next(line for line in log.read_text().splitlines() if line.startswith("ready "))
        ports.add(int(ready.rpartition(":")[2].rstrip("/")))
    return ports


def test_a_record_of_every_link_holds_the_traffic_of_every_role_and_no_key(tmp_path: Path) -> None:
    with slurm_cluster(tmp_path / "slurm", ("n1", "n2", "n3", "n4")) as cluster:
        run = FaultyRun(cluster, tmp_path / "work", faults=(), steps=STEPS, seed=0)
        spy = Spy(cluster.nodes, run.run)
        with captured(cluster.nodes, tmp_path / "capture") as files:
            spy.start()
            run.to_the_end()
        spy.join(timeout=10)
    assert spy.secrets.keys() >= {"run key", "CURVE secret of the server", "line 0 of the private key"}
    said = {connection: data for file in files for connection, data in streams(file).items()}
    ports = {connection.target_port for connection in said}
    assert spy.trainer_port in ports
    remote = {port for port in engine_ports(run.run) if port in ports}
    assert remote, "no engine was spoken to over a link"
    # gloo between ranks, and the tunnel of its store: node n4 speaks to n3 of what no other role takes part in.
    ranks = {cluster.nodes["n3"].address, cluster.nodes["n4"].address}
    assert sum(len(data) for connection, data in said.items() if {connection.source, connection.target} == ranks) > 0
    raw = [file.read_bytes() for file in files]
    leaked = found_in([*said.values(), *raw], spy.secrets)
    assert not leaked


def test_a_secret_that_is_sent_in_the_clear_is_found(tmp_path: Path) -> None:
    secret = "0123456789abcdef" * 3
    listen = (
        "import socket; s = socket.create_server(('', 7000)); print('up', flush=True)\n"
        "c, _ = s.accept()\n"
        "while c.recv(99): pass"  # to the end, because what is not read resets the connection
    )
    with machines(("n1", "n2"), tmp_path / "machines") as nodes:
        target = nodes["n2"].address
        with captured(nodes, tmp_path / "capture") as files:
            server = nodes["n2"].start_process(["python3", "-c", listen], tmp_path / "server.log")
            while "up" not in (tmp_path / "server.log").read_text():
                time.sleep(0.05)
            pieces = f"c.sendall(b'key {secret[:20]}'); c.sendall(b'{secret[20:]}')"
            send = f"import socket; c = socket.create_connection(('{target}', 7000)); {pieces}"
            nodes["n1"].run("python3", "-c", send)
            server.wait(timeout=30)
    said = [data for file in files for data in streams(file).values()]
    assert found_in(said, {"key": secret}) == ["key: as it is"]
