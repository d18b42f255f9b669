"""Whole runs as jobs of a real Slurm on three nodes, whose nodes are killed."""

from pathlib import Path

import pytest

from tests.cluster.slurm_cluster import SlurmCluster
from tests.cluster.slurm_job import SlurmJob, assert_only_daemons, write_small_recipe

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
pytestmark = pytest.mark.slow


def test_the_quickstart_over_three_nodes_finishes_and_learns(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = SlurmJob(slurm, QUICKSTART, tmp_path / "runs", "--nodes", "3", "--set", "engine.replicas=2")
    job.wait_for_state("COMPLETED")
    summary = job.summary()
    assert summary["accuracy_before"] <= 0.40
    assert summary["accuracy_after"] >= 0.93
    job.assert_trained_once(steps=60, groups=32)
    assert_only_daemons(slurm)


def test_a_run_survives_the_node_of_an_engine(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = SlurmJob(slurm, write_small_recipe(tmp_path), tmp_path / "runs")
    job.wait_for_checkpoint()
    slurm.kill("n2")
    job.wait_for_state("COMPLETED")
    assert "node n2 has failed" in job.output
    job.assert_trained_once(steps=200, groups=4)


@pytest.mark.parametrize(
    "victim", [pytest.param("n3", id="the trainer's"), pytest.param("n1", id="the controller's")]
)
def test_after_the_death_of_a_node_a_job_is_requeued_and_goes_on_from_its_checkpoint(
    slurm: SlurmCluster, tmp_path: Path, victim: str
) -> None:
    job = SlurmJob(slurm, write_small_recipe(tmp_path), tmp_path / "runs")
    job.wait_for_checkpoint()
    slurm.kill(victim)
    job.wait_for_state("PENDING")
    slurm.revive(victim)
    slurm.start_now(job.number)
    job.wait_for_state("COMPLETED")
    assert "resuming" in job.output
    job.assert_trained_once(steps=200, groups=4)
    assert_only_daemons(slurm)
