"""Write the script of a Slurm job in which a run takes place.

Recipe, Submission ─► #SBATCH lines: nodes, flags, requeue, a signal before the time limit
                      the controller, on the first node: a fresh run, or the same run resumed
"""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from string import Template

from arl.config.recipe import Recipe
from arl.launch.slurm.run_pointer import Submission

RUN_POINTER = "ARL_RUN_POINTER"  # environment: the file in which the launcher writes the path of the run directory
MARGIN_SECONDS = 30  # of the time between the signal and the limit, for this script
OWN_CORES = {"exclusive", "oversubscribe", "cpus-per-task", "cpus-per-gpu", "mincpus"}  # flags that choose the cores
SCRIPT = Path(__file__).with_name("job.sh")
NO_VALUE = "true"  # of a flag such as exclusive, which stands alone


class _Script(Template):
    """Leave the dollars to the shell."""

    delimiter = "@@"


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
    common = {
        "job-name": f"arl-{recipe.name}",
        "output": str(submission.log),
        "open-mode": "append",
        "chdir": str(Path.cwd()),
        "signal": f"B:TERM@{_seconds_to_stop(recipe)}",
    }
    flags = {
        **common,
        "nodes": _range(cluster.fewest_nodes, cluster.nodes),
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


def _seconds_to_stop(recipe: Recipe) -> int:
    """Return how long before the time limit a run must begin to stop."""
    deadlines = recipe.deadlines
    return round(deadlines.stop + deadlines.shutdown) + MARGIN_SECONDS


def _range(fewest: int, most: int) -> str:
    return str(most) if fewest == most else f"{fewest}-{most}"
