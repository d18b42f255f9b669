"""Divide the cores and devices of a node between the processes of a run.

             disaggregated                          collocated
CPU threads  engines half of the cores, ranks half  all cores for either side
GPUs         engines the first, ranks the rest      the same for both sides
turns        none: both sides work at once          engines sleep from a step until its swap, without their memory
"""

from dataclasses import dataclass

from arl.config.recipe import Recipe
from arl.errors import RecipeError
from arl.launch.base import Node, Resources


@dataclass(frozen=True)
class Placement:
    """Hold the resources of each process.

    Args:
        engines: by replica.
        ranks: by trainer rank.
    """

    engines: list[Resources]
    ranks: list[Resources]


def place(recipe: Recipe, node: Node) -> Placement:
    """Divide `node` between the two sides.

    Raises:
        RecipeError: there are GPUs, but fewer than the recipe's processes need; or none, where it needs them.
    """
    devices = () if recipe.world_traits.one_process else node.devices  # one process computes on the CPU
    _check_devices(recipe, devices)
    is_collocated = recipe.mode == "collocated"
    return Placement(
        engines=_place_engines(recipe, node.cores, devices, is_collocated),
        ranks=_place_ranks(recipe, node.cores, devices, is_collocated),
    )


def _check_devices(recipe: Recipe, devices: tuple[str, ...]) -> None:
    replicas = recipe.engine.replicas
    ranks = recipe.train.ranks
    width = recipe.engine.tensor_parallel
    if width > 1 and not devices:
        raise RecipeError(f"engine.tensor_parallel {width}: no GPU is visible, and on a CPU it is 1; use more replicas")
    for_engines = replicas * width
    needed = max(for_engines, ranks) if recipe.mode == "collocated" else for_engines + ranks
    if devices and len(devices) < needed:
        raise RecipeError(
            f"mode {recipe.mode} with {replicas} engine replicas on {width} GPUs each and {ranks} ranks needs {needed} "
            f"GPUs; {len(devices)} visible: use mode collocated, fewer processes, or CUDA_VISIBLE_DEVICES= for the CPU"
        )


def _place_engines(recipe: Recipe, cores: int, devices: tuple[str, ...], is_collocated: bool) -> list[Resources]:
    replicas = recipe.engine.replicas
    width = recipe.engine.tensor_parallel
    engine_cores = cores if is_collocated else _half(cores)
    threads = recipe.engine.threads or max(engine_cores // replicas, 1)
    engines = []
    for replica in range(replicas):
        first = replica * width
        own = devices[first : first + width]
        engines.append(Resources(threads, own, takes_turns=is_collocated))
    return engines


def _place_ranks(recipe: Recipe, cores: int, devices: tuple[str, ...], is_collocated: bool) -> list[Resources]:
    num_ranks = recipe.train.ranks
    rank_cores = cores if is_collocated else max(cores - _half(cores), 1)
    threads = recipe.train.threads or max(rank_cores // num_ranks, 1)
    first = 0 if is_collocated else recipe.engine.replicas * recipe.engine.tensor_parallel
    ranks = []
    for rank in range(num_ranks):
        own = devices[first + rank : first + rank + 1]
        ranks.append(Resources(threads, own, takes_turns=is_collocated))
    return ranks


def _half(cores: int) -> int:
    return max(cores // 2, 1)
