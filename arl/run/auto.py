"""Replace what a recipe leaves to the machine by what it means there, once, before anything starts.

train.dtype, engine.dtype: auto ─► bfloat16 where the run has GPUs, float32 where it computes on the CPU
train.shard_ranks: null         ─► with ranks on several nodes, those of one node: a copy of the weights on each
train.ranks, with min_ranks     ─► fewer, where a run is resumed on fewer GPUs than it had
"""

from collections.abc import Callable, Sequence

from arl.config.recipe import Recipe
from arl.config.section import Section
from arl.launch.base import Node, make_launcher
from arl.launch.placement import fitting_ranks, place

AUTO = "auto"


def resolve_auto(recipe: Recipe, named: Sequence[Node] | None = None) -> Recipe:
    """Return the recipe without what is left to the machines; the plan shows it, the run's recipe.yaml keeps it.

    Args:
        named: machines to plan for; None: the launcher's.

    Raises:
        RecipeError: the recipe's launcher cannot be made, or there are too few devices.
    """
    if not _needs_nodes(recipe):
        return recipe
    nodes = _nodes_of(recipe) if named is None else named
    dtype = "bfloat16" if _has_gpus(recipe, nodes) else "float32"
    engine: dict[str, object] = {}
    train: dict[str, object] = {}
    if recipe.engine.dtype == AUTO:
        engine["dtype"] = dtype
    if recipe.train.dtype == AUTO:
        train["dtype"] = dtype
    if recipe.train.shard_ranks is None and len(nodes) > 1:
        train["shard_ranks"] = _ranks_of_a_node(recipe, nodes)
    changed: dict[str, Section] = {}
    if engine:
        changed["engine"] = recipe.engine.model_copy(update=engine)
    if train:
        changed["train"] = recipe.train.model_copy(update=train)
    return recipe.model_copy(update=changed)


def _needs_nodes(recipe: Recipe) -> bool:
    """Return whether the recipe leaves anything to the machines. Otherwise no launcher is made to look at them."""
    needs_dtype = AUTO in (recipe.train.dtype, recipe.engine.dtype)
    may_need_shards = recipe.train.ranks > 1 and recipe.train.shard_ranks is None
    return needs_dtype or may_need_shards


def _nodes_of(recipe: Recipe) -> Sequence[Node]:
    """Return the machines of the recipe's launcher."""
    logs = recipe.run_directory / "logs"
    return make_launcher(recipe, logs).nodes


def fit_to_what_is_left(recipe: Recipe, note: Callable[[str], None]) -> Recipe:
    """Return the recipe of a resumed run with as many ranks as the GPUs that are left allow; see train.min_ranks.

    Raises:
        RecipeError: the recipe's launcher cannot be made, or even train.min_ranks do not fit.
    """
    if recipe.train.min_ranks is None:
        return recipe
    nodes = _nodes_of(recipe)
    devices = sum(len(node.devices) for node in nodes)
    had = recipe.train.ranks
    ranks = fitting_ranks(recipe, devices)
    if ranks == had:
        return recipe
    note(f"{devices} GPUs are left: resuming with train.ranks {ranks} instead of {had}")
    train = recipe.train.model_copy(update={"ranks": ranks})
    return recipe.model_copy(update={"train": train})


def _has_gpus(recipe: Recipe, nodes: Sequence[Node]) -> bool:
    if recipe.world_traits.one_process:
        return False  # it computes on the CPU, see arl.launch.placement
    return any(node.devices for node in nodes)


def _ranks_of_a_node(recipe: Recipe, nodes: Sequence[Node]) -> int | None:
    """Return how many ranks hold one copy of the weights: those of a node; None: all of them."""
    placement = place(recipe, nodes)
    nodes_of_ranks = {rank.node for rank in placement.ranks}
    if len(nodes_of_ranks) == 1:
        return None
    return placement.ranks_per_node
