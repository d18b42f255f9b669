"""Divide the cores and devices of a node between the processes of a run.

             disaggregated                          collocated
CPU threads  engines half of the cores, ranks half  all cores for either side
GPUs         engines the first, ranks the rest      the same for both sides
turns        none: both sides work at once          engines sleep from a step until its swap, without their memory

With eval.every a replica for evaluation is added: on GPUs behind all others, on a CPU with the threads of an engine and
the lowest priority.
"""

from dataclasses import dataclass, replace

from arl.config.recipe import Recipe
from arl.errors import RecipeError
from arl.launch.base import Node, Resources
from arl.launch.device_count import needed_devices, refuse_too_few_devices

LOWEST_PRIORITY = 19  # niceness
NO_MIG_GROUP = "NCCL joins no MIG devices"


@dataclass(frozen=True)
class Placement:
    """Hold the resources of each process.

    Args:
        engines: by replica.
        ranks: by trainer rank.
        evaluation: of the replica that evaluates during training; None: there is none.
    """

    engines: list[Resources]
    ranks: list[Resources]
    evaluation: Resources | None = None

    @property
    def on_gpus(self) -> bool:
        """Return whether the trainer's ranks have GPUs."""
        return bool(self.ranks[0].devices)

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the GPUs that the run uses, each once."""
        beside = [] if self.evaluation is None else [self.evaluation]
        used = [device for resources in (*self.engines, *self.ranks, *beside) for device in resources.devices]
        return tuple(dict.fromkeys(used))

    @property
    def has_mig_devices(self) -> bool:
        """Return whether a process has a part of a GPU, with which it can join no NCCL group."""
        return any(is_mig(device) for device in self.devices)

    def with_memory_share(self, share: float) -> "Placement":
        """Return the same placement, in which an engine may take only this fraction of each of its devices."""
        return replace(self, engines=[replace(engine, memory_share=share) for engine in self.engines])


def place(recipe: Recipe, node: Node) -> Placement:
    """Divide `node` between the two sides.

    Raises:
        RecipeError: there are GPUs, but fewer than the recipe's processes need; or none, where it needs them.
    """
    if recipe.world_traits.one_process:
        node = replace(node, devices=())  # one process computes on the CPU
    _check_devices(recipe, node)
    devices = node.devices
    is_collocated = recipe.mode == "collocated"
    engines = _place_engines(recipe, node.cores, devices, is_collocated)
    return Placement(
        engines=engines,
        ranks=_place_ranks(recipe, node.cores, devices, is_collocated),
        evaluation=_place_evaluation(recipe, devices, engines[0].threads),
    )


def _check_devices(recipe: Recipe, node: Node) -> None:
    ranks = recipe.train.ranks
    width = recipe.engine.tensor_parallel
    if any(is_mig(device) for device in node.devices):
        _refuse_groups_of_mig_devices(ranks, width)
    if width > 1 and not node.devices:
        raise RecipeError(f"engine.tensor_parallel {width}: no GPU is visible, and on a CPU it is 1; use more replicas")
    if node.devices:
        refuse_too_few_devices(recipe, node)


def is_mig(device: str) -> bool:
    """Return whether CUDA_VISIBLE_DEVICES names a part of a GPU by `device`.

    >>> is_mig("MIG-8a1c"), is_mig("GPU-8a1c"), is_mig("0")
    (True, False, False)
    """
    return device.startswith("MIG-")


def _refuse_groups_of_mig_devices(ranks: int, width: int) -> None:
    """Raise RecipeError if processes on several MIG devices would form a process group.

    A process sees one MIG device, and none has access to another one's memory; NCCL also takes two parts of one GPU for
    the same device: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
    """
    if width > 1:
        raise RecipeError(f"engine.tensor_parallel {width}: {NO_MIG_GROUP}; use 1, or GPUs that are not divided")
    if ranks > 1:
        raise RecipeError(f"train.ranks {ranks}: {NO_MIG_GROUP}; use 1, or GPUs that are not divided")


def _place_evaluation(recipe: Recipe, devices: tuple[str, ...], threads: int) -> Resources | None:
    if not recipe.evaluates_beside:
        return None
    if not devices:
        return Resources(threads, niceness=LOWEST_PRIORITY)
    first = needed_devices(recipe)
    return Resources(threads, devices[first : first + recipe.engine.tensor_parallel])


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
