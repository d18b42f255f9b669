"""Launch on a real Ray cluster of three machines: what is started is reported, watched and ended on every node."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.ray_cluster import RayCluster, missing_for_ray, ray_cluster
from tests.cluster.scenario import assert_as_documented, read_lines
from tests.cluster.slurm_cluster import wait_for
from tests.processes import survivors

MISSING = missing_for_ray()
pytestmark = [pytest.mark.long, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]

# A controller whose process stops the Ray worker that holds it, is replaced, and says what became of both.
HANGS = """
import asyncio, sys
from pathlib import Path
from arl.config.cluster_section import Cluster
from arl.launch.base import Resources
from arl.launch.ray.ray_launcher import RayLauncher
from tests.cluster.scenario import SERVE, python, say

STOPS_WORKER = f"import os, signal; os.kill(os.getppid(), signal.SIGSTOP); {SERVE}"

async def main():
    async with RayLauncher(Path(sys.argv[1]), 1.0, Cluster(nodes=3)) as launcher:
        process = await launcher.start("engine-0", python(STOPS_WORKER), Resources(1, node=1))
        say("ended by itself", await process.wait_then_kill_group(10.0))
        say("death", await process.ended(), process.exit_code)
        again = await launcher.start("engine-0", python(SERVE), Resources(1, node=1))
        say("ready", await again.ready(60))
        await asyncio.sleep(600 if sys.argv[2] == "stay" else 0)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    with ray_cluster(tmp_path_factory.mktemp("ray")) as running:
        yield running


def test_processes_on_other_nodes_start_end_and_are_lost_as_documented(cluster: RayCluster, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    log = tmp_path / "scenario.log"
    command = [sys.executable, "-m", "tests.cluster.scenario", "ray", str(directory)]
    running = cluster.start_on_head(command, log)
    wait_for(lambda: "kill n2" in log.read_text() or running.poll() is not None, "the scenario", 200)
    cluster.kill("n2")
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


@pytest.mark.parametrize("controller", ["leaves", "stay"])
def test_a_process_whose_ray_worker_is_stopped_is_replaced_and_nothing_outlives_the_controller(
    cluster: RayCluster, tmp_path: Path, controller: str
) -> None:
    log = tmp_path / "controller.log"
    entered = cluster.start_on_head([sys.executable, "-c", HANGS, str(tmp_path / "logs"), controller], log)
    wait_for(lambda: "ready" in log.read_text() or entered.poll() is not None, "a second process", 200)
    started = cluster.processes_of_arl()
    if controller == "stay":
        (inside,) = psutil.Process(entered.pid).children()
        inside.kill()
    entered.wait(60)
    seen = read_lines(log)
    assert seen["ended by itself"] == [False], log.read_text()
    assert "on n2) was lost with its Ray worker on n2 (Ray: " in seen["death"][0]
    assert (seen["death"][1], seen["ready"]) == (-9, ["here"])
    assert not survivors(started)


def refusal(cluster: RayCluster, *flags: str) -> str:
    """Return the one message with which `arl train` refuses to start."""
    arl = (sys.executable, "-m", "arl.cli", "train", "recipes/quickstart.yaml", "--launcher", "ray", *flags)
    done: subprocess.CompletedProcess[str] = cluster.run(*arl, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_clusters_that_cannot_be_used_are_refused_before_anything_starts(cluster: RayCluster) -> None:
    assert "has 3 alive (n1, n2, n3), and the run needs 4" in refusal(cluster, "--nodes", "4")
    assert "no Ray cluster can be used there" in refusal(
        cluster, "--set", "cluster.address=10.77.0.1:1", "--nodes", "3"
    )
    assert "must run on a node of the cluster" in refusal(cluster, "--set", "cluster.address=ray://10.77.0.1:10001")
