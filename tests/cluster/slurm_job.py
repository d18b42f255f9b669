"""Submit a run to a Slurm cluster of a test as a user does, and look at what it leaves."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

from tests.cluster.slurm_cluster import SlurmCluster, wait_for

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


class SlurmJob:
    """Hold a run that was submitted.

    Args:
        recipe: its file.
        directory: gets what the run writes.
        options: of `arl train`.
    """

    def __init__(self, cluster: SlurmCluster, recipe: Path, directory: Path, *options: str) -> None:
        self.cluster = cluster
        given = ("--launcher", "slurm", "--set", f"output.directory={directory}", *options)
        submitted = cluster.run(sys.executable, "-m", "arl.cli", "train", str(recipe), *given, seconds=180)
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
        self._wait(lambda: (self.files / "run-directory").exists() and any(self.run.glob("checkpoints/step_*")))

    def wait_for_state(self, state: str) -> None:
        """Wait until Slurm says that the job is in a state."""
        self._wait(lambda: self.cluster.job_state(self.number) == state)

    def _wait(self, is_so: Callable[[], bool]) -> None:
        ended = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}
        wait_for(lambda: is_so() or self.cluster.job_state(self.number) in ended, "the job", RUN_SECONDS)
        assert is_so(), self.output


def write_small_recipe(directory: Path) -> Path:
    """Write a recipe whose run takes a minute."""
    path = directory / "small.yaml"
    path.write_text(SMALL)
    return path
