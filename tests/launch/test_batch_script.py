"""The script of a Slurm job says what the recipe and the user's flags say."""

import subprocess
from pathlib import Path

import pytest

from arl.config.recipe import Recipe
from arl.config.recipe_file import load_recipe
from arl.errors import InputError, RunError
from arl.launch.slurm import allocation, submission
from arl.launch.slurm.allocation import read_allocation
from arl.launch.slurm.batch_script import render_script
from arl.launch.slurm.run_pointer import Submission
from arl.launch.slurm.submission import planned_nodes, write_job
from arl.run.submit import cluster_overrides, follow_submission, refuse_options_of_others, submit_run

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
    options = {"time": "08:00:00", "account": None, "partition": "gpu"}
    more = ["--qos=high", "--no-requeue", "--cpus-per-task=16", "--comment=two words"]
    flags = headers(*cluster_overrides("slurm", "2-6", options, more))
    assert {"--nodes=2-6", "--time=08:00:00", "--partition=gpu", "--qos=high", "--no-requeue"} <= set(flags)
    assert "--comment='two words'" in flags
    assert not {"--requeue", "--exclusive"} & set(flags)


@pytest.mark.parametrize("flag", ["--nodes=7", "--output=x", "--error=x", "--array=0-3"])
def test_a_flag_that_arl_gives_itself_is_refused(flag: str) -> None:
    with pytest.raises(InputError, match=r"arl gives this flag itself \(.*\); leave it out"):
        recipe(*cluster_overrides("slurm", "2", {}, [flag]))


def test_a_signal_that_would_end_the_run_without_a_checkpoint_is_refused() -> None:
    assert "--signal=B:TERM@900" in headers("cluster.flags.signal=B:TERM@900")
    with pytest.raises(InputError, match=r"cluster.flags.signal 'USR1@60': only SIGTERM.*as in B:TERM@900"):
        recipe("cluster.flags.signal=USR1@60")


@pytest.mark.parametrize("nodes", ["a-b", "2-", "-2", "1 2: x", "2-3-4"])
def test_an_option_that_is_no_number_of_machines_is_blamed_itself(nodes: str) -> None:
    with pytest.raises(InputError, match=f"--nodes {nodes}: give a number of machines, as in 4"):
        cluster_overrides(None, nodes, {}, ())


@pytest.mark.parametrize("flag", ["qos=x", "--", "--a.b=c", "--a b"])
def test_a_flag_of_sbatch_is_a_word_with_dashes(flag: str) -> None:
    with pytest.raises(InputError, match=f"--sbatch {flag}: give a flag of sbatch"):
        cluster_overrides("slurm", None, {}, [flag])


@pytest.mark.parametrize(
    ("launcher", "option", "owner"),
    [("local", "time", "slurm"), ("ray", "sbatch", "slurm"), ("slurm", "address", "ray"), ("local", "address", "ray")],
)
def test_an_option_that_the_launcher_would_ignore_is_refused(launcher: str, option: str, owner: str) -> None:
    rule = f"--{option}: is for launcher {owner}, and this run has launcher {launcher}; add --launcher {owner}"
    with pytest.raises(InputError, match=rule):
        refuse_options_of_others(recipe(f"launcher={launcher}"), {option: "given"})
    refuse_options_of_others(recipe(f"launcher={launcher}"), {option: None})
    refuse_options_of_others(recipe(f"launcher={owner}"), {option: "given"})


def test_within_a_job_its_flags_can_no_longer_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(InputError, match=r"--time: is for a job that is submitted, and this process is within job 7"):
        refuse_options_of_others(recipe(), {"time": "08:00:00"})


@pytest.mark.parametrize("resume", [None, Path("runs/it's here/recipe.yaml")])
def test_bash_can_read_the_script_whatever_the_paths_are(tmp_path: Path, resume: Path | None) -> None:
    script = render_script(recipe(), Submission(tmp_path / "it's a $HOME", resume, ["train.steps=9"]))
    assert "@@" not in script
    read = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")


@pytest.mark.parametrize(
    ("flags", "gpus"),
    [
        (["gpus-per-node=8"], 8),
        (["gpus-per-node=h100:4"], 4),
        (["gres='gpu:a100:2,nvme:1'"], 2),
        (["gpus=16"], 4),
        (["gpus-per-task=gpu"], 1),
        ([], 0),
    ],
)
def test_the_plan_before_the_job_counts_the_gpus_that_the_flags_ask_for(flags: list[str], gpus: int) -> None:
    nodes = planned_nodes(recipe("cluster.nodes=4", *(f"cluster.flags.{flag}" for flag in flags)))
    assert [len(node.devices) for node in nodes] == [gpus] * 4


def test_a_job_whose_nodes_cannot_be_read_without_scontrol_says_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "srun").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"scontrol is not found; run this where Slurm's commands are installed"):
        read_allocation({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]"})


def test_without_slurm_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"sbatch is not found; run this where Slurm.*or use `launcher: local`"):
        submit_run(recipe(f"output.directory={tmp_path}"), None)
    assert not list(tmp_path.iterdir())


def test_sbatch_that_does_not_answer_may_have_submitted_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = tmp_path / "sbatch"
    hanging.write_text("#!/bin/sh\nexec sleep 600\n")
    hanging.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(allocation, "ANSWER_SECONDS", 0.5)
    with pytest.raises(RunError, match=r"`sbatch .*job\.sh` has not answered within .*see `squeue --me`"):
        submission.submit(Submission(tmp_path))


def sbatch_that_says(words: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an sbatch on the path that refuses every job with these words."""
    program = directory / "bin" / "sbatch"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho 'sbatch: error: {words}' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "Could not establish a configuration source",
            r"Slurm does not work on this machine \(sbatch.*a login node of",
        ),
        ("Invalid qos specification", r"sbatch refuses the job: .*Invalid qos.*its flags are those of cluster\.flags"),
    ],
)
def test_a_refused_job_names_the_cause_and_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, message: str
) -> None:
    sbatch_that_says(words, tmp_path, monkeypatch)
    with pytest.raises(InputError, match=message):
        submit_run(recipe(f"output.directory={tmp_path / 'runs'}"), None)
    assert not list((tmp_path / "runs" / "slurm").iterdir())


def test_the_recipe_of_a_job_stands_for_the_run_that_the_job_has_begun(tmp_path: Path) -> None:
    job = Submission(tmp_path / "slurm" / "run-20260314")
    write_job(recipe(), job)
    with pytest.raises(InputError, match="is a submission, and its run has not begun"):
        follow_submission(job.recipe)
    job.pointer.write_text(f"{tmp_path / 'run'}\n")
    assert follow_submission(job.recipe) == tmp_path / "run" / "recipe.yaml"
    assert follow_submission(tmp_path / "run" / "recipe.yaml") == tmp_path / "run" / "recipe.yaml"


def test_a_job_that_would_find_no_run_to_resume_is_not_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sbatch_that_says("nobody should call me", tmp_path, monkeypatch)
    with pytest.raises(InputError, match=r"--resume: there is no run .*; start it without --resume"):
        submit_run(recipe(f"output.directory={tmp_path / 'runs'}"), QUICKSTART)
    assert not (tmp_path / "runs").exists()


def test_what_is_no_flag_is_refused() -> None:
    with pytest.raises(InputError, match=r"--sbatch qos=high: give a flag of sbatch with its dashes"):
        cluster_overrides("slurm", None, {}, ["qos=high"])
