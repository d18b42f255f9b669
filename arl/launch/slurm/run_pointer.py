"""Name the files of a job that `arl train` has submitted, and find its run by the directory of the job.

runs/slurm/NAME-TIME/run-directory ─► the run's directory, once the job has begun
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arl.errors import InputError


@dataclass(frozen=True)
class Submission:
    """Say where the files of one job are, and how its run begins.

    Args:
        directory: gets the script, the recipe, the log, and the path of the run directory.
        resume: the recipe's file, if a run is to go on; None: a new one begins.
        overrides: of a run that goes on, as `--set` takes them.
    """

    directory: Path
    resume: Path | None = None
    overrides: Sequence[str] = ()

    @property
    def script(self) -> Path:
        """Return where the script is."""
        return self.directory / "job.sh"

    @property
    def recipe(self) -> Path:
        """Return where the recipe is, as it was when the job was submitted."""
        return self.directory / "recipe.yaml"

    @property
    def log(self) -> Path:
        """Return where the output of the controller goes."""
        return self.directory / "job.log"

    @property
    def pointer(self) -> Path:
        """Return the file that says where the run directory is, once the run has begun."""
        return self.directory / "run-directory"


def run_of(directory: Path) -> Path:
    """Return the run of a submission; any other directory as it is, also one that cannot be looked at.

    Raises:
        InputError: the submitted job has not begun its run yet.
    """
    submission = Submission(directory)
    if not os.path.isfile(submission.script):
        return directory
    if not os.path.isfile(submission.pointer):
        raise InputError(f"{directory}: is a submission, and its run has not begun: see squeue and {submission.log}")
    return Path(submission.pointer.read_text().strip())
