"""A directory that was submitted leads to its run."""

import subprocess
import sys
from pathlib import Path

import pytest

from arl.errors import InputError
from arl.launch.slurm.run_pointer import Submission, run_of


def test_a_submission_leads_to_its_run_once_that_has_begun(tmp_path: Path) -> None:
    submission = Submission(tmp_path)
    submission.script.write_text("#!/bin/bash\n")
    with pytest.raises(InputError, match="is a submission, and its run has not begun: see squeue"):
        run_of(tmp_path)
    submission.pointer.write_text("/shared/runs/small\n")
    assert run_of(tmp_path) == Path("/shared/runs/small")


def test_another_directory_is_the_run_itself(tmp_path: Path) -> None:
    assert run_of(tmp_path) == tmp_path
    nowhere = tmp_path / ("x" * 300)  # longer than a name may be, so that it cannot even be looked for
    assert run_of(nowhere) == nowhere


def test_a_submission_that_has_not_begun_is_told_without_a_traceback(tmp_path: Path) -> None:
    Submission(tmp_path).script.write_text("#!/bin/bash\n")
    argv = [sys.executable, "-m", "arl.cli", "top", str(tmp_path), "--once"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"arl: {tmp_path}: is a submission, and its run has not begun")
