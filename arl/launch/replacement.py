"""Find another place for a process whose node is lost.

GPUs: as many as it had, free on one of the nodes that are left     CPU: the node that is left with the fewest processes
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from arl.launch.base import Node, Resources
from arl.launch.seats import FreeDevices, Seat


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
