"""Choose on which node and which GPUs each process of a run is, before cores are divided.

recipe, nodes ─► seats_on_gpus, seats_on_cpus ─► Seats: engines, ranks, evaluation ─► arl.launch.placement
a node is lost ─► another_place: GPUs that are free elsewhere, or on CPUs the node with the fewest threads in use
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from arl.config.recipe import Recipe
from arl.errors import RecipeError
from arl.launch.base import Node, Resources


@dataclass(frozen=True)
class Seat:
    """Say where one process is.

    Args:
        node: its number in Launcher.nodes.
        devices: its GPUs there, as CUDA_VISIBLE_DEVICES names them; empty: it computes on the CPU.
    """

    node: int
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Seats:
    """Say where every process is: engines by replica, ranks by number, and the replica for evaluation, or None."""

    engines: Sequence[Seat]
    ranks: Sequence[Seat]
    evaluation: Seat | None


class FreeDevices:
    """Hand out the GPUs of nodes.

    Args:
        by_node: number of a node -> its GPUs.
    """

    def __init__(self, by_node: Iterable[tuple[int, Sequence[str]]]) -> None:
        self._free: dict[int, list[str]] = {}
        for node, devices in by_node:
            self._free[node] = list(devices)

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> Self:
        """Hand out all GPUs of `nodes`."""
        by_node = [node.devices for node in nodes]
        return cls(enumerate(by_node))

    def without(self, seats: Iterable[Seat]) -> Self:
        """Take away what these processes use."""
        for seat in seats:
            free = self._free[seat.node]
            for device in seat.devices:
                if device in free:
                    free.remove(device)
        return self

    def has_together(self, count: int) -> bool:
        """Return whether a node has `count` GPUs left."""
        return any(len(devices) >= count for devices in self._free.values())

    def take_together(self, count: int) -> Seat:
        """Take `count` GPUs of one node, the first that has so many.

        Raises:
            RecipeError: no node has so many left.
        """
        for node, devices in self._free.items():
            if len(devices) >= count:
                return self._take(node, count)
        counts = [str(len(devices)) for devices in self._free.values()]
        left = ", ".join(counts)
        raise RecipeError(
            f"engine.tensor_parallel {count}: no node has so many GPUs left for another engine ({left} by node); use a "
            "smaller one, fewer engine.replicas or train.ranks, or more nodes"
        )

    def take_evenly(self, count: int) -> list[Seat]:
        """Take `count` GPUs for one process each, of as few nodes as possible, equally many of each.

        Where that is impossible, they are taken in the order of the nodes. There must be so many.
        """
        for num_nodes in range(1, len(self._free) + 1):
            if count % num_nodes != 0:
                continue
            each = count // num_nodes
            fitting = self._nodes_with(each)
            if len(fitting) >= num_nodes:
                chosen = fitting[:num_nodes]
                return self._take_of_each(chosen, each)
        return [self.take_together(1) for _ in range(count)]

    def _nodes_with(self, count: int) -> list[int]:
        """Return the nodes that have `count` GPUs left."""
        return [node for node, devices in self._free.items() if len(devices) >= count]

    def _take_of_each(self, nodes: Sequence[int], count: int) -> list[Seat]:
        """Take `count` GPUs of each node, for one process each."""
        seats = []
        for node in nodes:
            seats += [self._take(node, 1) for _ in range(count)]
        return seats

    def _take(self, node: int, count: int) -> Seat:
        free = self._free[node]
        taken = tuple(free[:count])
        del free[:count]
        return Seat(node, taken)


def seats_on_gpus(recipe: Recipe, nodes: Sequence[Node]) -> Seats:
    """Choose the GPUs of every process. Together the nodes have enough.

    Raises:
        RecipeError: an engine does not fit on any node.
    """
    width = recipe.engine.tensor_parallel
    replicas = recipe.engine.replicas
    free = FreeDevices.of(nodes)
    if recipe.mode == "collocated":
        ranks = free.take_evenly(recipe.train.ranks)
        is_on_ranks = replicas * width <= len(ranks)
        shared = _devices_of(ranks) if is_on_ranks else FreeDevices.of(nodes)
        engines = [shared.take_together(width) for _ in range(replicas)]
    else:
        engines = [free.take_together(width) for _ in range(replicas)]
        ranks = free.take_evenly(recipe.train.ranks)
    evaluation = None
    if recipe.evaluates_beside:
        left = FreeDevices.of(nodes).without([*engines, *ranks])
        evaluation = left.take_together(width)
    return Seats(engines, ranks, evaluation)


def _devices_of(seats: Sequence[Seat]) -> FreeDevices:
    """Hand out the GPUs of `seats`, node by node."""
    by_node: dict[int, list[str]] = {}
    for seat in seats:
        devices = by_node.setdefault(seat.node, [])
        devices.extend(seat.devices)
    return FreeDevices(by_node.items())


def seats_on_cpus(recipe: Recipe, num_nodes: int) -> Seats:
    """Deal the processes to the nodes in turn. Evaluation is on the controller's node, with the lowest priority.

    In mode disaggregated the trainer has nodes of its own, the last ones, so that each side has all cores of its nodes
    and neither the controller nor an engine is lost with the trainer's node.
    """
    num_ranks = recipe.train.ranks
    of_engines = range(num_nodes)
    of_ranks = range(num_nodes)
    if recipe.mode == "disaggregated" and num_nodes > 1:
        num_trainer_nodes = min(num_ranks, num_nodes // 2)
        first = num_nodes - num_trainer_nodes
        of_engines = range(first)
        of_ranks = range(first, num_nodes)
    engines = []
    for replica in range(recipe.engine.replicas):
        turn = replica % len(of_engines)
        engines.append(Seat(of_engines[turn]))
    each = math.ceil(num_ranks / len(of_ranks))
    ranks = []
    for rank in range(num_ranks):
        place = rank // each  # neighbors in the order of ranks share a node
        ranks.append(Seat(of_ranks[place]))
    evaluation = Seat(0) if recipe.evaluates_beside else None
    return Seats(engines, ranks, evaluation)


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
    left = [number for number in range(len(nodes)) if number not in lost]
    if not resources.devices:
        return _on_the_idlest(resources, others, left)
    count = len(resources.devices)
    devices = [nodes[number].devices for number in left]
    free = FreeDevices(zip(left, devices, strict=True))
    for other in others:
        if other.node not in lost:
            free.without([Seat(other.node, other.devices)])
    if not free.has_together(count):
        return None
    seat = free.take_together(count)
    return replace(resources, node=seat.node, devices=seat.devices)


def _on_the_idlest(resources: Resources, others: Sequence[Resources], left: Sequence[int]) -> Resources | None:
    if not left:
        return None
    threads = dict.fromkeys(left, 0)
    for other in others:
        if other.node in threads:
            threads[other.node] += other.threads
    idlest = min(left, key=lambda number: threads[number])
    return replace(resources, node=idlest)
