"""A Slurm job says what the recipe and the user's flags say, is submitted or refused with a reason, and finds its run.

bash runs the real script of the job. The commands of Slurm are short scripts here, because no real slurmctld falls
silent, or loses a node, at the moment that a test wants.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from arl.config.recipe import Recipe
from arl.config.recipe_file import load_recipe
from arl.errors import InputError
from arl.launch.slurm.job import Submission, planned_nodes, render_script
from arl.run.submit import cluster_overrides, follow_submission, refuse_flags, submit_run

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"


def recipe(*overrides: str) -> Recipe:
    return load_recipe(QUICKSTART, ["launcher=slurm", *overrides])


def headers(*overrides: str) -> list[str]:
    """Return the flags of the script of such a recipe, without their #SBATCH."""
    script = render_script(recipe(*overrides), Submission(Path("/shared/job")))
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]


def test_a_job_is_requeued_outlives_a_node_and_is_signaled_before_its_limit() -> None:
    flags = headers("cluster.nodes=4", "deadlines.stop=110")
    assert {"--nodes=4", "--requeue", "--no-kill", "--signal=B:TERM@150", "--open-mode=append"} <= set(flags)
    assert {"--exclusive", "--output=/shared/job/job.log"} <= set(flags)


def test_flags_of_the_user_come_last_and_count() -> None:
    given = [
        "--time=08:00:00",
        "--partition=gpu",
        "--qos=high",
        "--no-requeue",
        "--cpus-per-task=16",
        "--comment=two words",
    ]
    flags = headers(*cluster_overrides("slurm", "2-6", given))
    assert {"--nodes=2-6", "--time=08:00:00", "--partition=gpu", "--qos=high", "--no-requeue"} <= set(flags)
    assert "--comment='two words'" in flags
    assert "--exclusive" not in flags
    assert flags.index("--requeue") < flags.index("--no-requeue"), "for sbatch the last one counts"


def test_flags_that_arl_gives_itself_or_that_would_end_the_run_without_a_checkpoint_are_refused() -> None:
    for flag in ("--nodes=7", "--output=x", "--array=0-3"):
        with pytest.raises(InputError, match=r"arl gives this flag itself \(.*\); leave it out"):
            recipe(*cluster_overrides("slurm", "2", [flag]))
    assert "--signal=B:TERM@900" in headers("cluster.flags.signal=B:TERM@900")
    with pytest.raises(InputError, match=r"cluster.flags.signal 'USR1@60': only SIGTERM.*as in B:TERM@900"):
        recipe("cluster.flags.signal=USR1@60")


def test_a_flag_of_sbatch_is_refused_where_nothing_is_submitted() -> None:
    with pytest.raises(InputError, match="--sbatch --qos=high: is for a job, and the launcher is local"):
        refuse_flags(recipe("launcher=local"), ["--qos=high"])
    refuse_flags(recipe(), ["--qos=high"])


def test_the_plan_before_the_job_counts_the_gpus_that_the_flags_ask_for() -> None:
    for flag, gpus in (("gpus-per-node=h100:4", 4), ("gres='gpu:a100:2,nvme:1'", 2), ("gpus=16", 4), ("qos=high", 0)):
        nodes = planned_nodes(recipe("cluster.nodes=4", f"cluster.flags.{flag}"))
        assert [len(node.devices) for node in nodes] == [gpus] * 4


def test_without_slurm_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"sbatch is not found; run this where Slurm.*or use `launcher: local`"):
        submit_run(recipe(f"output.directory={tmp_path / 'runs'}"), None)
    assert not list(tmp_path.iterdir())


def write(directory: Path, name: str, *lines: str) -> None:
    """Write a command."""
    directory.mkdir(exist_ok=True)
    (directory / name).write_text("\n".join(["#!/bin/bash", *lines]))
    (directory / name).chmod(0o755)


def sbatch_that_says(words: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an sbatch on the path that refuses every job with these words."""
    write(directory / "bin", "sbatch", f"echo 'sbatch: error: {words}' >&2", "exit 1")
    monkeypatch.setenv("PATH", str(directory / "bin"), prepend=":")


def test_a_refused_job_names_the_cause_and_leaves_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sbatch_that_says("Invalid qos specification", tmp_path, monkeypatch)
    with pytest.raises(InputError, match=r"sbatch refuses the job: .*Invalid qos.*its flags come from cluster\.flags"):
        submit_run(recipe(f"output.directory={tmp_path / 'runs'}"), None)
    assert not list((tmp_path / "runs" / "slurm").iterdir())


def test_a_submission_and_its_recipe_stand_for_the_run_that_the_job_has_begun(tmp_path: Path) -> None:
    submitted = Submission(tmp_path / "slurm" / "run-20260314")
    submitted.directory.mkdir(parents=True)
    submitted.script.write_text("#!/bin/bash\n")
    with pytest.raises(InputError, match="is a submission, and its run has not begun: see squeue"):
        follow_submission(submitted.recipe)
    submitted.pointer.write_text(f"{tmp_path / 'run'}\n")
    assert follow_submission(submitted.recipe) == tmp_path / "run" / "recipe.yaml"
    assert follow_submission(tmp_path / "run" / "recipe.yaml") == tmp_path / "run" / "recipe.yaml"


def test_a_job_that_would_find_no_run_to_resume_is_not_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sbatch_that_says("nobody should call me", tmp_path, monkeypatch)
    with pytest.raises(InputError, match=r"--resume: there is no run .*; start it without --resume"):
        submit_run(recipe(f"output.directory={tmp_path / 'runs'}"), QUICKSTART)
    assert not (tmp_path / "runs").exists()


def run_script(directory: Path, monkeypatch: pytest.MonkeyPatch, srun: str, **variables: str) -> str:
    """Run the script of a job whose run fails, and return what it has called."""
    calls = shlex.quote(str(directory / "calls"))
    monkeypatch.setattr(sys, "executable", str(directory / "controller"))
    write(directory, "controller", f'echo controller "$@" >>{calls}', "exit 3")
    write(directory, "scontrol", f'echo scontrol "$@" >>{calls}')
    write(directory, "sleep", "exit 0")
    write(directory, "srun", srun)
    environment = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3", "SLURMD_NODENAME": "n1", **variables}
    done = subprocess.run(
        ["bash", "-c", render_script(recipe("cluster.nodes=3"), Submission(directory))],
        env={**os.environ, **environment, "PATH": f"{directory}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    return (directory / "calls").read_text()


def test_a_job_is_requeued_only_if_a_step_does_not_start_on_all_of_its_nodes_whatever_its_path_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "it's a $HOME"
    assert "scontrol" not in run_script(directory, monkeypatch, "exit 0")
    assert "scontrol requeue 7" in run_script(directory, monkeypatch, "exit 1")


def test_a_job_that_was_requeued_resumes_its_run_once_that_has_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    (tmp_path / "run-directory").write_text(f"{run}\n")
    again = {"SLURM_RESTART_COUNT": "1"}
    assert f"train {tmp_path}/recipe.yaml\n" in run_script(tmp_path, monkeypatch, "exit 0", **again)
    (run / "checkpoints" / "step_5").mkdir(parents=True)
    assert f"train {run}/recipe.yaml --resume\n" in run_script(tmp_path, monkeypatch, "exit 0", **again)
