"""Submit a run to Slurm as a job.

write_job ─► <output.directory>/slurm/<name>-<time>/: job.sh, recipe.yaml ─► submit: sbatch ─► its id
"""

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from arl.config.recipe import Recipe
from arl.config.recipe_file import dump_recipe
from arl.errors import InputError
from arl.launch.base import Node
from arl.launch.slurm.allocation import require, run_slurm
from arl.launch.slurm.batch_script import render_script
from arl.launch.slurm.run_pointer import Submission

# Of the messages of Slurm's commands where no flag is at fault.
NO_SLURM = ("configuration source", "Unable to contact slurm controller", "slurm.conf")
CORES = 8  # of a node that nobody knows yet


def new_submission(recipe: Recipe, resume: Path | None, overrides: Sequence[str]) -> Submission:
    """Choose a directory for a job that is submitted now. Nothing is made."""
    moment = time.strftime("%Y%m%d-%H%M%S")
    directory = recipe.run_directory.absolute().parent / "slurm" / f"{recipe.name}-{moment}"
    return Submission(directory, resume, overrides)


def write_job(recipe: Recipe, submission: Submission) -> None:
    """Write the script, and the recipe as it is now.

    Raises:
        InputError: the directory cannot be written.
    """
    try:
        submission.directory.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"output.directory: {submission.directory} cannot be made ({error.strerror})") from error
    submission.recipe.write_text(dump_recipe(recipe))
    submission.script.write_text(render_script(recipe, submission))


def submit(submission: Submission) -> str:
    """Submit the script, and return the job's id. If sbatch refuses it, the submission is removed.

    Raises:
        InputError: there is no sbatch, or it refuses the script.
        RunError: it does not answer.
    """
    done = run_slurm("sbatch", "--parsable", str(submission.script))
    if done.returncode != 0:
        shutil.rmtree(submission.directory)
        raise InputError(_explain_refusal(done.stderr.strip()))
    return done.stdout.strip().partition(";")[0]


def partitions() -> list[str]:
    """Return the names of the cluster's partitions.

    Raises:
        InputError: Slurm's commands are not installed, or reach no cluster.
    """
    require("sbatch")
    done = run_slurm("sinfo", "--noheader", "--format=%R")
    if done.returncode != 0:
        raise InputError(_no_cluster(done.stderr.strip()))
    return done.stdout.split()


def _no_cluster(said: str) -> str:
    cause = said.splitlines()[-1] if said else "no reason is given"
    return f"launcher slurm: Slurm does not work on this machine ({cause}); run this on a login node of the cluster"


def _explain_refusal(said: str) -> str:
    """Say why a job is not submitted, by what sbatch has printed."""
    if any(words in said for words in NO_SLURM):
        return _no_cluster(said)
    return (
        f"sbatch refuses the job: {said}; its flags are those of cluster.flags, --time, --account, --partition and "
        "--sbatch, and --dry-run shows its script"
    )


def planned_nodes(recipe: Recipe) -> list[Node]:
    """Return the nodes that the flags of the recipe ask for, as far as flags say what a node has."""
    cluster = recipe.cluster
    nodes = [_planned_node(cluster.flags, cluster.nodes)] * cluster.nodes
    return [replace(node, name=f"node {number}") for number, node in enumerate(nodes, start=1)]


def _planned_node(flags: dict[str, str], num_nodes: int) -> Node:
    num_devices = _gpus_of_a_node(flags, num_nodes)
    cores = flags.get("cpus-per-task", "")
    is_given = cores.isdecimal()
    return Node(
        name="node",
        cores=int(cores) if is_given else CORES,
        devices=tuple(str(number) for number in range(num_devices)),
        planned_by="cluster.flags",
        cores_from="by cpus-per-task of cluster.flags" if is_given else "until the job has counted them",
    )


def _gpus_of_a_node(flags: dict[str, str], num_nodes: int) -> int:
    """Read how many GPUs a node has from the flags that sbatch has for it, as in gpu:h100:8."""
    for name in ("gpus-per-node", "gpus-per-task"):
        if name in flags:
            return _last_number([flags[name]])
    if "gres" in flags:
        return _last_number([part for part in flags["gres"].split(",") if part.startswith("gpu")])
    return _last_number([flags["gpus"]]) // num_nodes if "gpus" in flags else 0


def _last_number(texts: Sequence[str]) -> int:
    """Return the number at the end of a text such as gpu:h100:8; without one it means 1, without a text 0."""
    for text in texts:
        last = text.rpartition(":")[2]
        return int(last) if last.isdecimal() else 1
    return 0
