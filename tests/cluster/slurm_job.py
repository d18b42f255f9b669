"""Submit a run to a Slurm cluster of a test as a user does, and look at what it leaves."""

import functools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.cluster.slurm_cluster import SlurmCluster, wait_for
from tests.cluster.trained_once import assert_trained_once

RUN_SECONDS = 600.0  # of a whole run, on a machine that does other things as well
SMALL = """\
name: small
model:
  tiny: {hidden_size: 32, layers: 1, heads: 2, intermediate_size: 64}
data: {task: running_checksum, options: {size: 2000}}
rollout: {problems_per_step: 4, group_size: 4, staleness: 2, max_new_tokens: 24}
train: {steps: 40, minibatches: 2, learning_rate: 1.5e-4}
engine: {slots: 32, replicas: 2}
eval: {problems: 16}
output: {checkpoint_every: 5}
launcher: slurm
cluster: {nodes: 3}
"""


def run_arl(cluster: SlurmCluster, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run an `arl` command on the cluster's head."""
    return cluster.run(sys.executable, "-m", "arl.cli", *arguments, check=False, seconds=180)


class SlurmJob:
    """Hold a run that was submitted.

    Args:
        recipe: its file.
        directory: gets what the run writes.
        options: of `arl train`.
    """

    def __init__(self, cluster: SlurmCluster, recipe: Path, directory: Path, *options: str) -> None:
        self.cluster = cluster
        self.directory = directory
        submitted = run_arl(
            cluster, "train", str(recipe), "--launcher", "slurm", "--set", f"output.directory={directory}", *options
        )
        assert submitted.returncode == 0, submitted.stdout + submitted.stderr
        found = re.search(r"job (\d+) is submitted", submitted.stdout)
        assert found is not None, submitted.stdout
        self.number = found[1]
        (self.files,) = (directory / "slurm").iterdir()

    @property
    def output(self) -> str:
        """Return what the job has printed so far."""
        log = self.files / "job.log"
        return log.read_text() if log.exists() else ""

    @property
    def run(self) -> Path:
        """Return the run directory, which the job has named."""
        return Path((self.files / "run-directory").read_text().strip())

    def wait_for_checkpoint(self) -> None:
        """Wait until the run has a checkpoint."""
        wait_for(lambda: self._has_checkpoint() or self._has_ended(), "a checkpoint", RUN_SECONDS)
        assert self._has_checkpoint(), self.output

    def wait_for_state(self, *states: str) -> None:
        """Wait until the job is in one of the states."""
        wait_for(lambda: self.state in states or self._has_ended(), f"the job to be {states}", RUN_SECONDS)
        assert self.state in states, self.output

    @property
    def state(self) -> str:
        """Return what Slurm says of the job, such as RUNNING."""
        return self.cluster.job_state(self.number)

    @property
    def minutes(self) -> int:
        """Return how long the job has run, as Slurm counts."""
        used = self.cluster.run("squeue", "--noheader", "--jobs", self.number, "--format", "%M").stdout.strip()
        *hours, minutes, _ = (int(part) for part in used.split(":"))
        return sum(hours) * 60 + minutes

    def summary(self) -> dict[str, Any]:
        """Return what the finished run has written."""
        summary: dict[str, Any] = json.loads((self.run / "summary.json").read_text())
        return summary

    def assert_trained_once(self, steps: int) -> None:
        """Check that so many steps trained the problems of an undisturbed run, each in one whole group."""
        assert_trained_once(self.run, steps)

    def _has_checkpoint(self) -> bool:
        return (self.files / "run-directory").exists() and any(self.run.glob("checkpoints/step_*"))

    def _has_ended(self) -> bool:
        return self.state in {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}


def write_small_recipe(directory: Path) -> Path:
    """Write a recipe whose run takes a minute."""
    path = directory / "small.yaml"
    path.write_text(SMALL)
    return path


def wait_for_idle_nodes(cluster: SlurmCluster) -> None:
    """Wait until nothing but Slurm's daemons is left on any node that is on."""
    for name, machine in cluster.nodes.items():
        if machine.is_on:
            wait_for(functools.partial(_is_idle, cluster, name), f"{name} to be idle", 30)


def _is_idle(cluster: SlurmCluster, name: str) -> bool:
    return not cluster.processes_of_jobs(name)
