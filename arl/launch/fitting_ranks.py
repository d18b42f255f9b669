"""Find the trainer's world size for a run that is resumed on fewer GPUs than it had.

GPUs that are left ─► without those of engines and evaluation ─► the largest multiple of train.shard_ranks that fits
"""

from arl.config.recipe import Recipe
from arl.errors import RecipeError


def fitting_ranks(recipe: Recipe, devices: int) -> int:
    """Return the number of ranks with which `recipe` resumes on `devices` GPUs: train.ranks, or fewer.

    Fewer than train.ranks are taken only with train.min_ranks. On CPUs, where `devices` is 0, nothing limits them.

    Raises:
        RecipeError: not even train.min_ranks fit.
    """
    train = recipe.train
    if train.min_ranks is None or devices == 0:
        return train.ranks
    room = min(devices - _devices_of_others(recipe), train.ranks)
    unit = train.shard_ranks or 1
    ranks = room // unit * unit
    if ranks < train.min_ranks:
        multiple = "" if unit == 1 else f", {max(ranks, 0)} as a multiple of train.shard_ranks {unit}"
        raise RecipeError(
            f"train.min_ranks {train.min_ranks}: {devices} GPUs are left, of which the trainer gets {max(room, 0)}"
            f"{multiple}; use fewer engine.replicas, a smaller train.min_ranks, or more nodes"
        )
    return ranks


def _devices_of_others(recipe: Recipe) -> int:
    """Return the number of GPUs that no rank may use."""
    width = recipe.engine.tensor_parallel
    evaluation = width if recipe.evaluates_beside else 0
    if recipe.mode == "collocated":
        return evaluation
    return recipe.engine.replicas * width + evaluation
