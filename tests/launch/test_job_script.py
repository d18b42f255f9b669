"""The script of a Slurm job requeues a job whose run has failed for want of a node, and no other one.

bash runs the real script. The commands of Slurm are short scripts here, because no real slurmctld falls silent, or
loses a node, at the moment that a test wants.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from arl.config.recipe_file import load_recipe
from arl.launch.slurm.batch_script import render_script
from arl.launch.slurm.run_pointer import Submission

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"


def write(directory: Path, name: str, *lines: str) -> None:
    """Write a command."""
    (directory / name).write_text("\n".join(["#!/bin/bash", *lines]))
    (directory / name).chmod(0o755)


def run_script(directory: Path, monkeypatch: pytest.MonkeyPatch, srun: str, **variables: str) -> str:
    """Run the script of a job whose run fails, and return what it has called."""
    calls = directory / "calls"
    monkeypatch.setattr(sys, "executable", str(directory / "controller"))
    write(directory, "controller", f'echo controller "$@" >>{calls}', "exit 3")
    write(directory, "scontrol", f'echo scontrol "$@" >>{calls}')
    write(directory, "sleep", "exit 0")
    write(directory, "srun", srun)
    recipe = load_recipe(QUICKSTART, ["launcher=slurm", "cluster.nodes=3"])
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3", "SLURMD_NODENAME": "n1", **variables}
    done = subprocess.run(
        ["bash", "-c", render_script(recipe, Submission(directory))],
        env={**os.environ, **job, "PATH": f"{directory}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    return calls.read_text()


def test_a_job_is_requeued_only_if_a_step_does_not_start_on_all_of_its_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "scontrol" not in run_script(tmp_path, monkeypatch, "exit 0")
    assert "scontrol requeue 7" in run_script(tmp_path, monkeypatch, "exit 1")


def test_a_job_that_was_requeued_resumes_its_run_once_that_has_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    (tmp_path / "run-directory").write_text(f"{run}\n")
    again = {"SLURM_RESTART_COUNT": "1"}
    assert f"train {tmp_path}/recipe.yaml\n" in run_script(tmp_path, monkeypatch, "exit 0", **again)
    (run / "checkpoints" / "step_5").mkdir(parents=True)
    assert f"train {run}/recipe.yaml --resume\n" in run_script(tmp_path, monkeypatch, "exit 0", **again)
