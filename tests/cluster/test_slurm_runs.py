"""Whole runs as jobs of a real Slurm on three nodes, whose nodes are killed."""

import json
import re
from pathlib import Path

import pytest

from tests.cluster.slurm_cluster import SlurmCluster
from tests.cluster.slurm_job import SlurmJob, write_small_recipe
from tests.cluster.trained_once import assert_trained_once

pytestmark = pytest.mark.slow


def test_a_run_survives_the_node_of_an_engine(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = SlurmJob(slurm, write_small_recipe(tmp_path), tmp_path / "runs")
    job.wait_for_checkpoint()
    slurm.nodes["n2"].kill()
    job.wait_for_state("COMPLETED")
    assert "resuming" not in job.output
    assert_trained_once(job.run, steps=40)


def test_after_the_death_of_the_trainers_node_a_job_is_requeued_and_goes_on_from_its_checkpoint(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    job = SlurmJob(slurm, write_small_recipe(tmp_path), tmp_path / "runs")
    job.wait_for_checkpoint()
    slurm.nodes["n3"].kill()
    job.wait_for_state("PENDING")
    slurm.revive("n3")
    slurm.start_now(job.number)
    job.wait_for_state("COMPLETED")
    assert "resuming" in job.output
    assert_trained_once(job.run, steps=40)
    slurm.wait_for_idle_nodes()


def test_a_job_that_gets_sigterm_as_before_its_time_limit_saves_a_checkpoint_and_ends(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    job = SlurmJob(slurm, write_small_recipe(tmp_path), tmp_path / "runs", "--set", "train.steps=100000")
    job.wait_for_checkpoint()
    slurm.run("scancel", "--signal=TERM", "--batch", job.number)
    job.wait_for_state("FAILED")  # by its exit code
    assert "ExitCode=130:0" in slurm.run("scontrol", "show", "job", job.number).stdout
    found = re.search(r"stopped at version (\d+); resume with: arl train (\S+) --resume", job.output)
    assert found is not None, job.output
    assert (job.run / "checkpoints" / f"step_{found[1]}").is_dir()
    slurm.wait_for_idle_nodes()


@pytest.mark.sglang
@pytest.mark.long
def test_a_run_with_sglang_on_two_of_three_nodes_trains_on_what_versions_of_a_broadcast_have_written(
    slurm: SlurmCluster, tmp_path: Path, sglang_python: str
) -> None:
    settings = (
        f"engine.python={sglang_python}",
        "engine.kind=sglang",
        "engine.dtype=float32",
        "train.dtype=float32",
        "train.steps=4",
        "sync.transport=broadcast",
        "output.checkpoint_every=2",
    )
    options = [word for setting in settings for word in ("--set", setting)]
    job = SlurmJob(slurm, write_small_recipe(tmp_path), tmp_path / "runs", *options)
    job.wait_for_state("COMPLETED")
    assert_trained_once(job.run, steps=4)
    assert "weights travel by broadcast" in job.output
    for number, node in enumerate(("n1", "n2")):
        log = (job.run / "logs" / f"engine-{number}.log").read_text()
        assert f"ready https://{slurm.nodes[node].address}:" in log
    summary = json.loads((job.run / "summary.json").read_text())
    assert (
        max(map(int, summary["token_ages"])) <= 2
    )  # so step 4 trains on nothing older than version 1, which only a broadcast has brought
    slurm.wait_for_idle_nodes()
