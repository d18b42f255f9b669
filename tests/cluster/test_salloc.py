"""In an allocation of `salloc`, a sweep on its first node trains one run after the other."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.slurm_cluster import SlurmCluster
from tests.cluster.slurm_job import wait_for_idle_nodes, write_small_recipe
from tests.cluster.trained_once import assert_trained_once

SALLOC = ("salloc", "--no-kill", "--nodes=3")


@pytest.mark.long
def test_the_runs_of_a_sweep_take_turns_in_one_allocation(slurm: SlurmCluster, tmp_path: Path) -> None:
    sweep = (sys.executable, "-m", "arl.cli", "sweep", str(write_small_recipe(tmp_path)), "--name", "study")
    settings = ("--set", f"output.directory={tmp_path / 'runs'}", "--set", "train.steps=3")
    on_first_node = ("srun", "--overlap", "--nodes=1", "--ntasks=1")
    command = [*SALLOC, *on_first_node, *sweep, *settings, "--axis", "rollout.staleness=1,2"]
    done = subprocess.run(
        slurm.head.entering(command, slurm.environment),
        capture_output=True,
        text=True,
        timeout=300.0,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summaries = sorted(path.parent for path in (tmp_path / "runs").rglob("summary.json"))
    assert len(summaries) == 2
    for run in summaries:
        assert_trained_once(run, steps=3)
    wait_for_idle_nodes(slurm)
