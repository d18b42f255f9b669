"""Choose on which node and which GPUs each process of a run is, before cores are divided.

recipe, nodes ─► seats_on_gpus, seats_on_cpus ─► Seats: engines, ranks, evaluation ─► arl.launch.placement
a node is lost ─► another_place: GPUs that are free elsewhere, or on CPUs the node with the fewest threads in use
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from arl.config.recipe import Recipe
from arl.errors import RecipeError
from arl.launch.base import Node, Resources

Free = dict[int, list[str]]  # number of a node -> its GPUs that nothing uses, as CUDA_VISIBLE_DEVICES names them


class Seat(NamedTuple):
    """Say where one process is: the number of its node in Launcher.nodes, and its GPUs there; none: on the CPU."""

    node: int
    devices: tuple[str, ...] = ()


class Seats(NamedTuple):
    """Say where every process is: engines by replica, ranks by number, and the replica for evaluation, or None."""

    engines: Sequence[Seat]
    ranks: Sequence[Seat]
    evaluation: Seat | None


def seats_on_gpus(recipe: Recipe, nodes: Sequence[Node]) -> Seats:
    """Choose the GPUs of every process. Together the nodes have enough.

    Raises:
        RecipeError: an engine does not fit on any node.
    """
    width = recipe.engine.tensor_parallel
    replicas = recipe.engine.replicas
    free = _all_devices(nodes)
    if recipe.mode == "collocated":
        ranks = _take_evenly(free, recipe.train.ranks)
        shared = _all_devices(nodes)
        if replicas * width <= len(ranks):
            shared = {node: [seat.devices[0] for seat in ranks if seat.node == node] for node in free}
        engines = [_take_together(shared, width) for _ in range(replicas)]
    else:
        engines = [_take_together(free, width) for _ in range(replicas)]
        ranks = _take_evenly(free, recipe.train.ranks)
    evaluation = None
    if recipe.evaluates_beside:
        evaluation = _take_together(_without(free, engines), width)
    return Seats(engines, ranks, evaluation)


def _all_devices(nodes: Sequence[Node]) -> Free:
    return {number: list(node.devices) for number, node in enumerate(nodes)}


def _without(free: Free, seats: Sequence[Seat]) -> Free:
    """Return what is free without what these processes use."""
    used = {(seat.node, device) for seat in seats for device in seat.devices}
    return {node: [device for device in devices if (node, device) not in used] for node, devices in free.items()}


def _nodes_with(free: Free, count: int) -> list[int]:
    """Return the nodes that have `count` GPUs left."""
    return [node for node, devices in free.items() if len(devices) >= count]


def _take_together(free: Free, count: int) -> Seat:
    """Take `count` GPUs of one node, the first that has so many.

    Raises:
        RecipeError: no node has so many left.
    """
    fitting = _nodes_with(free, count)
    if not fitting:
        left = ", ".join(str(len(devices)) for devices in free.values())
        raise RecipeError(
            f"engine.tensor_parallel {count}: no node has so many GPUs left for another engine ({left} by node); use a "
            "smaller one, fewer engine.replicas or train.ranks, or more nodes"
        )
    return _take(free, fitting[0], count)


def _take(free: Free, node: int, count: int) -> Seat:
    taken = tuple(free[node][:count])
    del free[node][:count]
    return Seat(node, taken)


def _take_evenly(free: Free, count: int) -> list[Seat]:
    """Take `count` GPUs for one process each, of as few nodes as possible, equally many of each.

    Where that is impossible, they are taken in the order of the nodes. There must be so many.
    """
    for num_nodes in range(1, len(free) + 1):
        each, rest = divmod(count, num_nodes)
        fitting = _nodes_with(free, each)
        if rest == 0 and len(fitting) >= num_nodes:
            return [_take(free, node, 1) for node in fitting[:num_nodes] for _ in range(each)]
    return [_take_together(free, 1) for _ in range(count)]


def seats_on_cpus(recipe: Recipe, num_nodes: int) -> Seats:
    """Deal the processes to the nodes in turn. Evaluation is on the controller's node, with the lowest priority.

    In mode disaggregated the trainer has nodes of its own, the last ones, so that each side has all cores of its nodes
    and neither the controller nor an engine is lost with the trainer's node.
    """
    num_ranks = recipe.train.ranks
    of_engines = of_ranks = range(num_nodes)
    if recipe.mode == "disaggregated" and num_nodes > 1:
        first = num_nodes - min(num_ranks, num_nodes // 2)
        of_engines = range(first)
        of_ranks = range(first, num_nodes)
    each = math.ceil(num_ranks / len(of_ranks))  # neighbors in the order of ranks share a node
    return Seats(
        engines=[Seat(of_engines[replica % len(of_engines)]) for replica in range(recipe.engine.replicas)],
        ranks=[Seat(of_ranks[rank // each]) for rank in range(num_ranks)],
        evaluation=Seat(0) if recipe.evaluates_beside else None,
    )


def another_place(
    resources: Resources, others: Sequence[Resources], nodes: Sequence[Node], lost: Collection[int]
) -> Resources | None:
    """Return what a process gets on another node than its own; None: no node that is left has room for it.

    Args:
        resources: what it had.
        others: of every other process of the run; those on lost nodes hold nothing.
        nodes: of the launcher.
        lost: numbers of the nodes that have failed, its own among them.
    """
    left = {number: devices for number, devices in _all_devices(nodes).items() if number not in lost}
    if not left:
        return None
    if not resources.devices:
        threads: Counter[int] = Counter()
        for other in others:
            threads[other.node] += other.threads
        return replace(resources, node=min(left, key=lambda number: threads[number]))
    free = _without(left, [Seat(other.node, other.devices) for other in others])
    count = len(resources.devices)
    fitting = _nodes_with(free, count)
    if not fitting:
        return None
    seat = _take(free, fitting[0], count)
    return replace(resources, node=seat.node, devices=seat.devices)
