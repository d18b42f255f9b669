"""Find the run of a directory that `arl train` has submitted: the path that a user copies first.

runs/slurm/NAME-TIME/run-directory ─► the run's directory, once the job has begun
"""

import os
from pathlib import Path

from arl.errors import InputError
from arl.launch.slurm.batch_script import Submission


def run_of(directory: Path) -> Path:
    """Return the run of a submission; any other directory as it is, also one that cannot be looked at.

    Raises:
        InputError: the submitted job has not begun its run yet.
    """
    submission = Submission(directory)
    if not os.path.isfile(submission.script):
        return directory
    if not os.path.isfile(submission.pointer):
        raise InputError(
            f"{directory}: is a submission, and its run has not begun: see squeue and {submission.log}"
        )
    return Path(submission.pointer.read_text().strip())
