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
SILENT = "exit 1"
THREE_NODES = "echo 3"
TWO_NODES = "echo 2"
STEP_STARTS = "exit 0"
NO_STEP = "exit 1"


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory of PATH with a controller whose run fails, and a clock that never makes anybody wait."""
    directory = tmp_path / "bin"
    directory.mkdir()
    write(directory, "controller", ["exit 3"])
    write(directory, "scontrol", [f'echo "$@" >>{tmp_path}/scontrol.log'])
    write(directory, "sleep", ["exit 0"])
    monkeypatch.setattr(sys, "executable", str(directory / "controller"))
    return directory


def write(directory: Path, name: str, answers: list[str]) -> None:
    """Write a command that does one thing after the other, a call each, and the last one from then on."""
    calls = directory / f"{name}.calls"
    cases = "".join(f"{number}) {answer};;\n" for number, answer in enumerate(answers[:-1], 1))
    count = f"echo >>{calls}\ncase $(wc -l <{calls}) in\n{cases}*) {answers[-1]};;\nesac\n"
    (directory / name).write_text(f"#!/bin/bash\n{count}")
    (directory / name).chmod(0o755)


@pytest.mark.parametrize(
    ("squeue", "checks", "is_requeued"),
    [
        pytest.param([THREE_NODES], [STEP_STARTS], False, id="every node answers"),
        pytest.param([TWO_NODES], [STEP_STARTS], True, id="Slurm has taken a node away"),
        pytest.param([THREE_NODES], [NO_STEP], True, id="a node does not answer"),
        pytest.param([SILENT, SILENT, THREE_NODES], [STEP_STARTS], False, id="slurmctld is silent for a moment"),
        pytest.param([SILENT, TWO_NODES], [STEP_STARTS], True, id="slurmctld is silent, then says that a node is gone"),
        pytest.param([SILENT], [NO_STEP], False, id="slurmctld stays silent"),
        pytest.param([THREE_NODES], [NO_STEP, STEP_STARTS], False, id="slurmctld falls silent after its answer"),
    ],
)
def test_a_job_is_requeued_only_if_slurm_says_that_a_node_is_lost(
    commands: Path, tmp_path: Path, squeue: list[str], checks: list[str], is_requeued: bool
) -> None:
    write(commands, "squeue", squeue)
    write(commands, "check", checks)
    steps = f'case "$*" in *" /bin/true") exec {commands}/check;; *) exit 0;; esac'  # the others watch the controller
    write(commands, "srun", [steps])
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_NODELIST": "n[1-3]", "SLURMD_NODENAME": "n1"}
    recipe = load_recipe(QUICKSTART, ["launcher=slurm", "cluster.nodes=3"])
    script = render_script(recipe, Submission(tmp_path))
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, **job, "PATH": f"{commands}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    requeued = (tmp_path / "scontrol.log").exists()
    assert requeued == is_requeued, done.stdout + done.stderr
    assert ("is requeued" in done.stdout) == is_requeued
