"""Send a run to a Slurm cluster, instead of running it here.

outside of a job      recipe ─► preflight on the nodes that the flags ask for ─► script ─► sbatch ─► what the user does
in an allocation, on none of its nodes    the same command ─► srun ─► first node
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from arl.config.recipe import Recipe
from arl.errors import InputError
from arl.launch.base import Node
from arl.launch.slurm.job import (
    NO_VALUE,
    in_allocation,
    new_submission,
    planned_nodes,
    render_script,
    run_of,
    run_slurm,
    submit,
)
from arl.metrics.run_files import RECIPE
from arl.run.machines import resolve_auto
from arl.run.plan_text import render_plan
from arl.run.preflight import preflight
from arl.run.resume import run_to_resume

SLURM = "slurm"
NODES = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
FLAG = re.compile(r"--([a-zA-Z][a-zA-Z0-9_-]*)(?:=(.*))?", re.DOTALL)  # a dot would name a field of the recipe


def cluster_overrides(launcher: str | None, nodes: str | None, flags: Sequence[str]) -> list[str]:
    """Return the overrides of the recipe that options of the command line stand for.

    Args:
        nodes: as in 4, or 2-4.
        flags: of sbatch, as one writes them: --qos=high.

    Raises:
        InputError: `nodes` is no number of machines, or one of `flags` is no flag.
    """
    overrides = [] if launcher is None else [f"launcher={json.dumps(launcher)}"]
    if nodes is not None:
        found = NODES.fullmatch(nodes)
        if found is None:
            raise InputError(f"--nodes {nodes}: give a number of machines, as in 4, or the fewest and the most: 2-4")
        fewest, most = found.groups()
        overrides.append(f"cluster.nodes={most or fewest}")
        overrides += [f"cluster.min_nodes={fewest}"] if most else []
    for flag in flags:
        found = FLAG.fullmatch(flag)
        if found is None:
            raise InputError(f"--sbatch {flag}: give a flag of sbatch with its dashes, as in --sbatch=--qos=high")
        name, value = found.groups()
        overrides.append(f"cluster.flags.{name}={json.dumps(NO_VALUE if value is None else value)}")
    return overrides


def refuse_flags(recipe: Recipe, flags: Sequence[str]) -> None:
    """Refuse flags of sbatch where nothing is submitted.

    Raises:
        InputError: one is given.
    """
    if flags and recipe.launcher != SLURM:
        raise InputError(f"--sbatch {flags[0]}: is for a job, and the launcher is {recipe.launcher}; leave it out")


def is_submitted(recipe: Recipe) -> bool:
    """Return whether a run of this recipe is submitted from here, rather than run."""
    return recipe.launcher == SLURM and not in_allocation()


def follow_submission(file: Path) -> Path:
    """Return the recipe of the run that a job has begun, if `file` is the recipe of that job, and else `file`.

    Raises:
        InputError: the job has begun no run.
    """
    return run_of(file.parent) / RECIPE if file.name == RECIPE else file


def check_submission(recipe: Recipe) -> None:
    """Check whether a run can be submitted from here, as far as one can before the job.

    Raises:
        InputError: something is known to fail, or Slurm's commands are not installed.
    """
    run_slurm("sbatch", "--version")
    _checked(recipe, None)


def plan_submission(recipe: Recipe, named: Sequence[Node] | None) -> str:
    """Check what can be known before the job starts, and return the plan and the script. Nothing is written.

    Args:
        named: nodes to plan for; None: those that the flags ask for.

    Raises:
        InputError: something is known to fail.
    """
    plan = _checked(recipe, named)
    return f"{plan}\n{render_script(recipe, new_submission(recipe, None, ()))}"


def submit_run(recipe: Recipe, resume: Path | None, overrides: Sequence[str] = ()) -> str:
    """Check what can be known before the job starts, submit it, and return what the user wants to know.

    Args:
        resume: the recipe's file, if its run is to go on.
        overrides: that the recipe was read with.

    Raises:
        InputError: something is known to fail, there is no run to resume, or Slurm refuses the job.
    """
    check_submission(recipe)
    if resume is not None:
        run_to_resume(recipe, resume)  # else the job would find out, when it has waited for its nodes
    submission = new_submission(recipe, resume, overrides)
    job = submit(recipe, submission)
    nodes = recipe.cluster.nodes
    return "\n".join(
        [
            f"job {job} is submitted: {nodes} {'node' if nodes == 1 else 'nodes'}",
            f"script   {submission.script}",
            f"output   {submission.log}",
            f"state    squeue --jobs={job}",
            f"run      {submission.pointer} names its directory RUN; then: arl top RUN, arl logs RUN",
            f"end it   scancel --signal=TERM --batch {job}     saves a checkpoint first",
            f"         scancel {job}                           at once",
        ]
    )


def _checked(recipe: Recipe, named: Sequence[Node] | None) -> str:
    """Plan the run on nodes that are not here yet, and return the page of the plan."""
    nodes = planned_nodes(recipe) if named is None else named
    resolved = resolve_auto(recipe, nodes)
    return render_plan(resolved, preflight(resolved, nodes))
