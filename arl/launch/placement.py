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
        counts = set(Counter(rank.node for rank in self.ranks).values())
        return counts.pop() if len(counts) == 1 else None

    def devices_of(self, node: int) -> tuple[str, ...]:
        """Return the GPUs of a node that the run uses, each once."""
        return tuple(dict.fromkeys(device for one in self._all if one.node == node for device in one.devices))

    @property
    def _all(self) -> list[Resources]:
        return [*self.engines, *self.ranks, *([] if self.evaluation is None else [self.evaluation])]

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
    width = recipe.engine.tensor_parallel
    if has_gpus:
        refuse_too_few_devices(recipe, merged(nodes))
    elif width > 1:
        raise RecipeError(f"engine.tensor_parallel {width}: no GPU is visible, and on a CPU it is 1; use more replicas")
    seats = seats_on_gpus(recipe, nodes) if has_gpus else seats_on_cpus(recipe, len(nodes))
    return _grant(recipe, nodes, seats)


def merged(nodes: Sequence[Node]) -> Node:
    """Return one node with everything that `nodes` have."""
    if len(nodes) == 1:
        return nodes[0]
    return replace(
        nodes[0],
        name=f"{len(nodes)} nodes",
        cores=sum(node.cores for node in nodes),
        devices=tuple(device for node in nodes for device in node.devices),
    )


def _grant(recipe: Recipe, nodes: Sequence[Node], seats: Seats) -> Placement:
    """Divide the cores of each node between the processes that have their seats there."""
    is_collocated = recipe.mode == "collocated"

    def grant(
        seat: Seat, threads: int | None, side: Sequence[Seat], other: Sequence[Seat], is_engine: bool
    ) -> Resources:
        """Grant what one process uses: its part of the cores of its side, unless the recipe gives its threads."""
        cores = nodes[seat.node].cores
        if not is_collocated and any(one.node == seat.node for one in other):
            half = max(cores // 2, 1)
            cores = half if is_engine else cores - half
        beside = sum(one.node == seat.node for one in side)
        return Resources(threads or max(cores // beside, 1), seat.devices, is_collocated, node=seat.node)

    engines = [grant(seat, recipe.engine.threads, seats.engines, seats.ranks, True) for seat in seats.engines]
    ranks = [grant(seat, recipe.train.threads, seats.ranks, seats.engines, False) for seat in seats.ranks]
    evaluation = None
    if seats.evaluation is not None:
        node, devices = seats.evaluation
        evaluation = Resources(engines[0].threads, devices, node=node)
    return Placement(engines, ranks, evaluation)
