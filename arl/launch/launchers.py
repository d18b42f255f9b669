"""Find the launcher that a recipe names, and refuse one that lacks a part of the seam."""

import inspect
from pathlib import Path
from typing import cast

from arl.config.imports import check_seam, import_attribute
from arl.config.recipe import Recipe
from arl.errors import ArlError, RecipeError
from arl.launch.base import Launcher

BUILT_IN = {
    "local": "arl.launch.local:LocalLauncher",
    "slurm": "arl.launch.slurm.slurm_launcher:SlurmLauncher",
    "ray": "arl.launch.ray.ray_launcher:RayLauncher",
}
EXAMPLE = BUILT_IN["local"]


def make_launcher(recipe: Recipe, logs: Path) -> Launcher:
    """Make the recipe's launcher, which will write logs into the directory `logs`. It starts nothing yet.

    Raises:
        RecipeError: the name is unknown or does not import, or what it names makes no launcher.
        InputError: the launcher cannot work here, as slurm on a machine without Slurm.
    """
    what = f"launcher {recipe.launcher!r}"
    factory = import_attribute(recipe.launcher, "launcher", BUILT_IN)
    patience = recipe.deadlines.shutdown
    try:
        inspect.signature(factory).bind(logs, patience, recipe.cluster)
    except (TypeError, ValueError) as error:  # a class written in C may have no signature
        raise RecipeError(
            f"{what}: it is called with (logs: Path, patience: float, cluster: Cluster), which it does not take "
            f"({error}); see {EXAMPLE}"
        ) from error
    try:
        launcher = factory(logs, patience, recipe.cluster)
    except ArlError:
        raise
    except Exception as error:  # user code may fail in any way
        raise RecipeError(f"{what}: it raised {error!r} when it was called; see {EXAMPLE}") from error
    check_seam(launcher, what, Launcher, EXAMPLE)
    if not hasattr(launcher, "__aenter__") or not hasattr(launcher, "__aexit__"):
        raise RecipeError(f"{what}: it cannot be used in `async with`, by which its processes end; see {EXAMPLE}")
    if not launcher.nodes:
        raise RecipeError(f"{what}: it offers no node; the first must be the controller's")
    return cast(Launcher, launcher)
