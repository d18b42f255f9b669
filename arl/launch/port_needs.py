"""Check that the ports which a firewall leaves open (cluster.ports) are free in sufficient number on every node.

Each of these takes a port of its node's address:
    the controller       the trainer's channel
    rank 0               where ranks meet, if there are several
    each engine, and the replica for evaluation       HTTP
"""

from collections.abc import Sequence

from arl.config.ports import port_range
from arl.errors import InputError
from arl.launch.base import Node
from arl.launch.placement import Placement


def ports_needed(placement: Placement, node: int) -> int:
    """Return how many ports the processes of a run take on a node, at least."""
    servers = [*placement.engines, *([] if placement.evaluation is None else [placement.evaluation])]
    of_servers = sum(server.node == node for server in servers)
    of_controller = int(node == 0)
    of_first_rank = int(len(placement.ranks) > 1 and placement.ranks[0].node == node)
    return of_servers + of_controller + of_first_rank


def refuse_too_few_ports(ports: str, placement: Placement, nodes: Sequence[Node]) -> None:
    """Raise InputError if too few of `ports` are free on a node; it names every such node."""
    size = len(port_range(ports))
    problems = []
    for number in placement.nodes:
        free = nodes[number].free_ports
        needed = ports_needed(placement, number)
        if free is not None and free < needed:
            problems.append(
                f"node {nodes[number].name}: cluster.ports {ports}: {size - free} of its {size} ports are taken and "
                f"{free} are free, and the run needs {needed} there; give a longer range, or other ports"
            )
    if problems:
        raise InputError("\n".join(problems))
