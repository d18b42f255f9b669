"""Divide the cores and devices of the nodes between the processes of a run.

                  disaggregated                             collocated
GPUs              engines the first, ranks the rest         the same for both sides
one node, CPU     engines half of the cores, ranks half     all cores for either side
several, CPU      engines the first nodes, ranks the last   engines and ranks on every node
turns             none: both sides work at once             engines sleep from a step until its swap, without memory

An engine's GPUs are on one node. Ranks are on as few nodes as possible, equally many on each, because then a copy of
the weights can be kept on each node (train.shard_ranks).

With eval.every a process for evaluation is added: on GPUs behind all others, on a CPU with the threads of an engine.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from arl.config.recipe import Recipe
from arl.errors import RecipeError
from arl.launch.base import Node, Resources
from arl.launch.device_count import refuse_too_few_devices
from arl.launch.seats import Seat, Seats, seats_on_cpus, seats_on_gpus


@dataclass(frozen=True)
class Placement:
    """Hold the resources of each process.

    Args:
        engines: by replica.
        ranks: by trainer rank.
        evaluation: of the process that evaluates during training; None: there is none.
    """

    engines: list[Resources]
    ranks: list[Resources]
    evaluation: Resources | None = None

    @property
    def on_gpus(self) -> bool:
        """Return whether the trainer's ranks have GPUs."""
        return bool(self.ranks[0].devices)

    @property
    def nodes(self) -> list[int]:
        """Return the numbers of the nodes that the run uses, the controller's included."""
        used = {resources.node for resources in self._all}
        return sorted({0} | used)

    @property
    def spans_nodes(self) -> bool:
        """Return whether the run is on several nodes, whose processes share no memory."""
        return len(self.nodes) > 1

    @property
    def ranks_per_node(self) -> int | None:
        """Return how many ranks each node of the trainer has; None: not equally many."""
        ranks_of = Counter(rank.node for rank in self.ranks)
        counts = set(ranks_of.values())
        if len(counts) != 1:
            return None
        return counts.pop()

    def devices_of(self, node: int) -> tuple[str, ...]:
        """Return the GPUs of a node that the run uses, each once."""
        used: list[str] = []
        for resources in self._all:
            if resources.node == node:
                used += resources.devices
        return tuple(dict.fromkeys(used))

    @property
    def _all(self) -> list[Resources]:
        sides = self.engines + self.ranks
        if self.evaluation is None:
            return sides
        return [*sides, self.evaluation]

    def with_memory_share(self, share: float) -> "Placement":
        """Return the same placement, in which an engine may take only this fraction of each of its devices."""
        engines = [replace(engine, memory_share=share) for engine in self.engines]
        return replace(self, engines=engines)


def place(recipe: Recipe, nodes: Sequence[Node]) -> Placement:
    """Divide `nodes`, of which the first is the controller's, between the two sides.

    Raises:
        RecipeError: there are GPUs, but fewer than the recipe's processes need; or none, where it needs them.
    """
    if recipe.world_traits.one_process:
        nodes = [replace(nodes[0], devices=())]  # one process computes on the CPU
    has_gpus = any(node.devices for node in nodes)
    _check_devices(recipe, nodes, has_gpus)
    seats = seats_on_gpus(recipe, nodes) if has_gpus else seats_on_cpus(recipe, len(nodes))
    return _grant(recipe, nodes, seats)


def merged(nodes: Sequence[Node]) -> Node:
    """Return one node with everything that `nodes` have."""
    if len(nodes) == 1:
        return nodes[0]
    cores = 0
    devices: list[str] = []
    for node in nodes:
        cores += node.cores
        devices += node.devices
    return replace(
        nodes[0],
        name=f"{len(nodes)} nodes",
        cores=cores,
        devices=tuple(devices),
    )


def _check_devices(recipe: Recipe, nodes: Sequence[Node], has_gpus: bool) -> None:
    width = recipe.engine.tensor_parallel
    if width > 1 and not has_gpus:
        raise RecipeError(f"engine.tensor_parallel {width}: no GPU is visible, and on a CPU it is 1; use more replicas")
    if has_gpus:
        refuse_too_few_devices(recipe, merged(nodes))


def _to_resources(recipe: Recipe, seat: Seat, threads: int | None, cores: int, neighbors: Sequence[Seat]) -> Resources:
    """Grant what one process uses: its share of the `cores` of its side, unless the recipe gives its threads."""
    beside = sum(other.node == seat.node for other in neighbors)
    return Resources(
        threads=threads or max(cores // beside, 1),
        devices=seat.devices,
        takes_turns=recipe.mode == "collocated",
        node=seat.node,
    )


def _grant(recipe: Recipe, nodes: Sequence[Node], seats: Seats) -> Placement:
    """Divide the cores of each node between the processes that have their seats there."""
    is_shared = recipe.mode == "collocated"

    def engine_cores(node: int) -> int:
        cores = nodes[node].cores
        if is_shared or not _has(seats.ranks, node):
            return cores
        return _half(cores)

    def rank_cores(node: int) -> int:
        cores = nodes[node].cores
        if is_shared or not _has(seats.engines, node):
            return cores
        return max(cores - _half(cores), 1)

    engines = []
    for seat in seats.engines:
        cores = engine_cores(seat.node)
        engines.append(_to_resources(recipe, seat, recipe.engine.threads, cores, seats.engines))
    ranks = []
    for seat in seats.ranks:
        cores = rank_cores(seat.node)
        ranks.append(_to_resources(recipe, seat, recipe.train.threads, cores, seats.ranks))
    last = seats.evaluation
    evaluation = None if last is None else Resources(engines[0].threads, last.devices, node=last.node)
    return Placement(engines, ranks, evaluation)


def _has(seats: Sequence[Seat], node: int) -> bool:
    return any(seat.node == node for seat in seats)


def _half(cores: int) -> int:
    return max(cores // 2, 1)
