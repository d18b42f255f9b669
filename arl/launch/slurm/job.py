"""Submit a run to Slurm as a job, and find the run of a job that was submitted.

Recipe ─► <output.directory>/slurm/<name>-<time>/: recipe.yaml, job.sh ─► sbatch ─► its id
          job.sh: #SBATCH lines (nodes, flags, requeue, a signal before the time limit), then the controller
          run-directory: the run's directory, once the job has begun
"""

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from arl.config.recipe import Recipe
from arl.config.recipe_file import dump_recipe
from arl.errors import InputError, RunError
from arl.launch.base import Node

JOB = "SLURM_JOB_ID"
RUN_POINTER = "ARL_RUN_POINTER"  # environment: the file in which the launcher writes the path of the run directory
ANSWER_SECONDS = 120.0  # for a command of Slurm
MARGIN_SECONDS = 30  # of the time between the signal and the limit, for the script
OWN_CORES = {"exclusive", "oversubscribe", "cpus-per-task", "cpus-per-gpu", "mincpus"}  # flags that choose the cores
SCRIPT = Path(__file__).with_name("job.sh")
NO_VALUE = "true"  # of a flag such as exclusive, which stands alone
CORES = 8  # of a node that nobody knows yet


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


class _Script(Template):
    """Leave the dollars to the shell."""

    delimiter = "@@"


def in_allocation() -> bool:
    """Return whether this process runs within a Slurm job."""
    return JOB in os.environ


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


def run_slurm(*command: str, seconds: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command of Slurm, and return what it says and its exit code.

    Raises:
        InputError: it is not installed.
        RunError: it does not answer.
    """
    seconds = seconds or ANSWER_SECONDS
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except FileNotFoundError as error:
        raise InputError(
            f"launcher slurm: {command[0]} is not found; run this where Slurm's commands are installed, such as a "
            "login node, or use `launcher: local` on one machine"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise RunError(
            f"launcher slurm: `{' '.join(command)}` has not answered within {seconds:.0f} s; see `squeue --me` "
            "and `sdiag`, and try again"
        ) from error


def new_submission(recipe: Recipe, resume: Path | None, overrides: Sequence[str]) -> Submission:
    """Choose a directory for a job that is submitted now. Nothing is made."""
    moment = time.strftime("%Y%m%d-%H%M%S")
    directory = recipe.run_directory.absolute().parent / "slurm" / f"{recipe.name}-{moment}"
    return Submission(directory, resume, overrides)


def submit(recipe: Recipe, submission: Submission) -> str:
    """Write the script and the recipe, submit the job, and return its id. A refused submission is removed.

    Raises:
        InputError: the directory cannot be written, there is no sbatch, or it refuses the script.
        RunError: it does not answer.
    """
    try:
        submission.directory.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"output.directory: {submission.directory} cannot be made ({error.strerror})") from error
    submission.recipe.write_text(dump_recipe(recipe))
    submission.script.write_text(render_script(recipe, submission))
    try:
        done = run_slurm("sbatch", "--parsable", str(submission.script))
        if done.returncode != 0:
            raise InputError(
                f"sbatch refuses the job: {done.stderr.strip()}; run this on a login node of the cluster; its flags "
                "come from cluster.flags and --sbatch, and --dry-run shows its script"
            )
    except InputError:
        shutil.rmtree(submission.directory)
        raise
    return done.stdout.strip().partition(";")[0]


def render_script(recipe: Recipe, submission: Submission) -> str:
    """Return the text of the script."""
    arl = [sys.executable, "-m", "arl.cli", "train"]
    first = [str(submission.recipe)]
    if submission.resume is not None:
        settings = [word for override in submission.overrides for word in ("--set", override)]
        first = [str(submission.resume.absolute()), "--resume", *settings]
    return _Script(SCRIPT.read_text()).substitute(
        headers="\n".join(_headers(recipe, submission)),
        pointer=shlex.quote(str(submission.pointer)),
        pointer_name=RUN_POINTER,
        arl=shlex.join(arl),
        first=shlex.join(first),
    )


def _headers(recipe: Recipe, submission: Submission) -> Iterator[str]:
    """Yield the #SBATCH lines; what the user gives counts.

    There is no --ntasks-per-node: with it Slurm 22.05 gives a job of 2-4 nodes no more than 2.
    """
    cluster = recipe.cluster
    deadlines = recipe.deadlines
    fewest = f"{cluster.fewest_nodes}-" if cluster.fewest_nodes < cluster.nodes else ""
    flags = {
        "job-name": f"arl-{recipe.name}",
        "output": str(submission.log),
        "open-mode": "append",
        "chdir": str(Path.cwd()),
        "signal": f"B:TERM@{round(deadlines.stop + deadlines.shutdown) + MARGIN_SECONDS}",
        "nodes": f"{fewest}{cluster.nodes}",
        "requeue": NO_VALUE,
        "no-kill": NO_VALUE,
    }
    if not OWN_CORES & set(cluster.flags):
        flags["exclusive"] = NO_VALUE
    flags.update(cluster.flags)
    if "no-requeue" in cluster.flags:
        del flags["requeue"]
    for name, value in flags.items():
        yield f"#SBATCH --{name}" if value.lower() == NO_VALUE else f"#SBATCH --{name}={shlex.quote(value)}"


def planned_nodes(recipe: Recipe) -> list[Node]:
    """Return the nodes that the flags of the recipe ask for, as far as flags say what a node has."""
    cluster = recipe.cluster
    cores = cluster.flags.get("cpus-per-task", "")
    is_given = cores.isdecimal()
    return [
        Node(
            name=f"node {number}",
            cores=int(cores) if is_given else CORES,
            devices=tuple(map(str, range(_gpus_of_a_node(cluster.flags, cluster.nodes)))),
            planned_by="cluster.flags",
            cores_from="by cpus-per-task of cluster.flags" if is_given else "until the job has counted them",
        )
        for number in range(1, cluster.nodes + 1)
    ]


def _gpus_of_a_node(flags: dict[str, str], num_nodes: int) -> int:
    """Read how many GPUs a node has from the flags that sbatch has for it, as in gpu:h100:8."""
    of_gres = [part for part in flags.get("gres", "").split(",") if part.startswith("gpu")]
    of_node = flags.get("gpus-per-node") or flags.get("gpus-per-task") or "".join(of_gres[:1])
    last = (of_node or flags.get("gpus", "0")).rpartition(":")[2]
    count = int(last) if last.isdecimal() else 1  # a mere name
    return count if of_node else count // num_nodes
