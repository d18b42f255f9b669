"""Replace what a recipe leaves to the machine by what it means there, once, before anything starts.

train.dtype, engine.dtype: auto ─► bfloat16 where the run has GPUs, float32 where it computes on the CPU
"""

from arl.config.recipe import Recipe
from arl.config.section import Section
from arl.launch.base import Node
from arl.launch.launchers import make_launcher

AUTO = "auto"


def resolve_auto(recipe: Recipe, named: Node | None = None) -> Recipe:
    """Return the recipe without `auto`; the plan shows it, and the run's recipe.yaml keeps it.

    Args:
        named: a machine to plan for; None: the launcher's.

    Raises:
        RecipeError: the recipe's launcher cannot be made.
    """
    if AUTO not in (recipe.train.dtype, recipe.engine.dtype):
        return recipe
    dtype = "bfloat16" if _has_gpus(recipe, named) else "float32"
    changes: dict[str, Section] = {}
    if recipe.train.dtype == AUTO:
        changes["train"] = recipe.train.model_copy(update={"dtype": dtype})
    if recipe.engine.dtype == AUTO:
        changes["engine"] = recipe.engine.model_copy(update={"dtype": dtype})
    return recipe.model_copy(update=changes)


def _has_gpus(recipe: Recipe, named: Node | None) -> bool:
    if recipe.world_traits.one_process:
        return False  # it computes on the CPU, see arl.launch.placement
    if named is not None:
        return bool(named.devices)
    launcher = make_launcher(recipe, recipe.run_directory / "logs")
    return bool(launcher.nodes[0].devices)
