"""Whole runs as jobs of a real Slurm on three nodes, whose nodes are killed."""

import re
from pathlib import Path

import pytest

from tests.cluster.slurm_cluster import SlurmCluster
from tests.cluster.slurm_job import SlurmJob, wait_for_idle_nodes, write_small_recipe


@pytest.mark.slow
def test_a_run_survives_the_node_of_an_engine(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = SlurmJob(slurm, write_small_recipe(tmp_path), tmp_path / "runs")
    job.wait_for_checkpoint()
    slurm.kill("n2")
    job.wait_for_state("COMPLETED")
    assert "resuming" not in job.output
    job.assert_trained_once(steps=40)


@pytest.mark.slow
def test_after_the_death_of_the_trainers_node_a_job_is_requeued_and_goes_on_from_its_checkpoint(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    job = SlurmJob(slurm, write_small_recipe(tmp_path), tmp_path / "runs")
    job.wait_for_checkpoint()
    slurm.kill("n3")
    job.wait_for_state("PENDING")
    slurm.revive("n3")
    slurm.start_now(job.number)
    job.wait_for_state("COMPLETED")
    assert "resuming" in job.output
    job.assert_trained_once(steps=40)
    wait_for_idle_nodes(slurm)


@pytest.mark.slow
def test_before_its_time_limit_a_run_saves_a_checkpoint_and_ends_and_another_job_goes_on(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    recipe = write_small_recipe(tmp_path)
    long = ("--sbatch=--time=60", "--sbatch=--signal=B:TERM@60", "--set", "train.steps=100000")
    job = SlurmJob(slurm, recipe, tmp_path / "runs", *long)
    job.wait_for_checkpoint()
    minutes = job.minutes + 2  # whatever the machine has taken until now
    slurm.run("scontrol", "update", f"JobId={job.number}", f"TimeLimit={minutes}")
    job.wait_for_state("FAILED")  # by its exit code
    assert "ExitCode=130:0" in slurm.run("scontrol", "show", "job", job.number).stdout
    found = re.search(r"stopped at version (\d+); resume with: arl train (\S+) --resume", job.output)
    assert found is not None, job.output
    steps = int(found[1])
    assert steps > 0
    assert (job.run / "checkpoints" / f"step_{steps}").is_dir()
    wait_for_idle_nodes(slurm)
