"""Whole runs on a real Ray cluster of three machines, whose nodes are killed."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.ray_cluster import RayCluster, missing_for_ray, ray_cluster, wait_for
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


class RayRun:
    """Hold `arl train` on the head of a cluster.

    Args:
        recipe: its file.
        directory: gets the runs.
        options: of `arl train`.
    """

    def __init__(self, cluster: RayCluster, recipe: Path, directory: Path, *options: str) -> None:
        self._cluster = cluster
        self._directory = directory
        self._log = directory.with_suffix(".log")
        self._log.unlink(missing_ok=True)
        where = ("--launcher", "ray", "--address", "auto", "--set", f"output.directory={directory}")
        arl = (sys.executable, "-m", "arl.cli", "train", str(recipe), *where, *options)
        self._process = cluster.start_on_head(arl, self._log)

    @property
    def output(self) -> str:
        """Return what it has printed so far."""
        return self._log.read_text()

    @property
    def run(self) -> Path:
        """Return the run directory."""
        (run,) = self._directory.iterdir()
        return run

    def wait_for_checkpoint(self) -> None:
        """Wait until the run has a checkpoint."""
        pattern = "*/checkpoints/step_*"
        wait_for(lambda: any(self._directory.glob(pattern)) or self._has_ended(), "a checkpoint", RUN_SECONDS)
        assert any(self._directory.glob(pattern)), self.output

    def end(self) -> int:
        """Wait for its end, and return its exit code. Nothing of it is left on any node then."""
        code = self._process.wait(RUN_SECONDS)
        left = self._cluster.processes_of_arl
        wait_for(lambda: not left(), f"an end of {left()}", 30)
        return code

    def _has_ended(self) -> bool:
        return self._process.poll() is not None


@pytest.mark.long
def test_a_run_survives_the_node_of_an_engine(cluster: RayCluster, tmp_path: Path) -> None:
    longer = ("--set", "train.steps=200")  # than Ray takes to notice, and another engine to start elsewhere
    run = RayRun(cluster, write_small_recipe(tmp_path), tmp_path / "runs", *longer)
    run.wait_for_checkpoint()
    cluster.kill(NODE_OF_ENGINE)
    assert run.end() == 0, run.output
    assert re.search(rf"engine-1 \(pid \d+ on {NODE_OF_ENGINE}\) was lost with its node", run.output), run.output
    assert_trained_once(run.run, steps=200)


@pytest.mark.long
def test_after_the_death_of_the_trainers_node_a_run_is_resumed_on_the_nodes_that_are_left(
    cluster: RayCluster, tmp_path: Path
) -> None:
    recipe = write_small_recipe(tmp_path)
    fewer = ("--set", "cluster.min_nodes=2")
    run = RayRun(cluster, recipe, tmp_path / "runs", *fewer)
    run.wait_for_checkpoint()
    cluster.kill(NODE_OF_TRAINER)
    assert run.end() == 3, run.output
    diagnosis = run.output[run.output.index("arl: ") :]
    lost = rf"trainer-0 \(pid \d+ on {NODE_OF_TRAINER}\) was lost with its node {NODE_OF_TRAINER} \(Ray: "
    assert re.search(lost, diagnosis), diagnosis
    assert "Traceback" not in diagnosis
    resumed = RayRun(cluster, recipe, tmp_path / "runs", *fewer, "--resume")
    assert resumed.end() == 0, resumed.output
    assert "resuming" in resumed.output
    assert_trained_once(resumed.run, steps=40)
