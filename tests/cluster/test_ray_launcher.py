"""Launch on a real Ray cluster of three machines: what is started is reported, watched and ended on every node."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.ray_cluster import RayCluster, missing_for_ray, ray_cluster
from tests.cluster.scenario import assert_as_documented, kill_controller, read_lines
from tests.cluster.slurm_cluster import wait_for
from tests.processes import survivors

MISSING = missing_for_ray()
pytestmark = [pytest.mark.long, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    with ray_cluster(tmp_path_factory.mktemp("ray")) as running:
        yield running


@pytest.mark.parametrize("dies", ["node", "controller"])
def test_processes_on_other_nodes_start_end_and_are_lost_as_documented(
    cluster: RayCluster, tmp_path: Path, dies: str
) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    log = tmp_path / "scenario.log"
    running = cluster.head.start_process([sys.executable, "-m", "tests.cluster.scenario", "ray", str(directory)], log)
    wait_for(lambda: "kill n2" in log.read_text() or running.poll() is not None, "the scenario", 200)
    if dies == "controller":
        started = [process for process in cluster.processes_of_arl() if process.name() != "sleep"]
        kill_controller(cluster.head)
        assert not survivors(started)
        for orphan in cluster.processes_of_arl():  # what those have started is theirs to end
            orphan.kill()
        return
    cluster.nodes["n2"].kill()
    try:
        assert running.wait(120) == 0, log.read_text()
    finally:
        cluster.revive("n2")
    addresses = {name: machine.address for name, machine in cluster.nodes.items()}
    runner = r"was lost with its Ray worker on n3 \(Ray: "
    lost = r"was lost with its node n2 \(Ray: the actor's node "
    assert_as_documented(read_lines(log), addresses, runner, lost)
    assert not survivors(cluster.processes_of_arl())
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path != log]
    assert not [path for path in files if "SECRET" in path.read_text()]


def refusal(cluster: RayCluster, *flags: str) -> str:
    """Return the one message with which `arl train` refuses to start."""
    arl = (sys.executable, "-m", "arl.cli", "train", "recipes/quickstart.yaml", "--launcher", "ray", *flags)
    done = cluster.head.run(*arl, seconds=120, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_clusters_that_cannot_be_used_are_refused_before_anything_starts(cluster: RayCluster) -> None:
    assert "has 3 alive (n1, n2, n3), and the run needs 4" in refusal(cluster, "--nodes", "4")
    assert "no Ray cluster can be used there" in refusal(
        cluster, "--set", "cluster.address=10.77.0.1:1", "--nodes", "3"
    )
    assert "must run on a node of the cluster" in refusal(cluster, "--set", "cluster.address=ray://10.77.0.1:10001")
