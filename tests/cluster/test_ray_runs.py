"""Whole runs on a real Ray cluster of three machines, whose nodes are killed."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.ray_cluster import RayCluster, missing_for_ray, ray_cluster
from tests.cluster.slurm_cluster import wait_for
from tests.cluster.slurm_job import write_small_recipe
from tests.cluster.trained_once import assert_trained_once

MISSING = missing_for_ray()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

RUN_SECONDS = 400.0  # of a whole run, on a machine that does other things as well
# In the order of placement: the controller and an engine on n1, an engine on n2, the trainer on n3.
NODE_OF_ENGINE = "n2"
NODE_OF_TRAINER = "n3"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RayCluster]:
    with ray_cluster(tmp_path / "ray") as running:
        yield running


def train(cluster: RayCluster, directory: Path, victim: str | None, *options: str) -> tuple[int, str]:
    """Run `arl train` on the head, and kill a node when it has a checkpoint; return its exit code and its output.

    Nothing of the run is left on any node then.
    """
    recipe = write_small_recipe(directory)
    log = directory / f"train-{victim}.log"
    where = ("--launcher", "ray", "--set", f"output.directory={directory / 'runs'}")
    running = cluster.head.start_process((sys.executable, "-m", "arl.cli", "train", str(recipe), *where, *options), log)
    if victim is not None:
        steps = directory / "runs" / "small" / "checkpoints"
        wait_for(lambda: any(steps.glob("step_*")) or running.poll() is not None, "a checkpoint", RUN_SECONDS)
        assert running.poll() is None, log.read_text()
        cluster.nodes[victim].kill()
    code = running.wait(RUN_SECONDS)
    left = cluster.processes_of_arl
    wait_for(lambda: not left(), f"an end of {left()}", 30)
    return code, log.read_text()


@pytest.mark.long
def test_a_run_survives_the_node_of_an_engine(cluster: RayCluster, tmp_path: Path) -> None:
    longer = ("--set", "train.steps=200")  # than Ray takes to notice, and another engine to start elsewhere
    code, output = train(cluster, tmp_path, NODE_OF_ENGINE, *longer)
    assert code == 0, output
    assert re.search(rf"engine-1 \(pid \d+ on {NODE_OF_ENGINE}\) was lost with its node", output), output
    assert_trained_once(tmp_path / "runs" / "small", steps=200)


@pytest.mark.long
def test_after_the_death_of_the_trainers_node_a_run_is_resumed_on_the_nodes_that_are_left(
    cluster: RayCluster, tmp_path: Path
) -> None:
    fewer = ("--set", "cluster.min_nodes=2")
    code, output = train(cluster, tmp_path, NODE_OF_TRAINER, *fewer)
    assert code == 3, output
    lost = rf"trainer-0 \(pid \d+ on {NODE_OF_TRAINER}\) was lost with its node {NODE_OF_TRAINER} \(Ray: "
    assert re.search(lost, output[output.index("arl: ") :]), output
    assert "Traceback" not in output
    code, output = train(cluster, tmp_path, None, *fewer, "--resume")
    assert code == 0, output
    assert "resuming" in output
    assert_trained_once(tmp_path / "runs" / "small", steps=40)
