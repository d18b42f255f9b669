"""Say on which nodes the processes of a planned run are. Torch-free."""

from collections.abc import Iterable, Iterator, Sequence

from arl.config.recipe import Recipe
from arl.launch.base import Node, Resources
from arl.run.preflight import Plan

NAMED = 4  # nodes, at most; of more, the first and the last are named


def cluster_lines(recipe: Recipe, plan: Plan) -> Iterator[str]:
    """Yield the launcher with its nodes, and what the number of their cores comes from if nobody has counted them."""
    if recipe.launcher == "local" and len(plan.nodes) == 1:
        return
    placement = plan.placement
    sides = {"engines": placement.engines, "trainer": placement.ranks}
    if placement.evaluation is not None:
        sides["evaluation"] = [placement.evaluation]
    places = [f"{side} on {_names(_nodes_of(processes), plan.nodes)}" for side, processes in sides.items()]
    count = "1 node" if len(plan.nodes) == 1 else f"{len(plan.nodes)} nodes"
    yield f"{recipe.launcher}, {count}; controller on {plan.nodes[0].name}, {', '.join(places)}"
    assumed = {node.cores_from: node.cores for node in plan.nodes if node.cores_from is not None}
    for source, cores in assumed.items():
        yield f"cores assumed: {cores} a node, {source}"


def list_gpus(side: Sequence[Resources], nodes: Sequence[Node]) -> str:
    """Name the GPUs of each process of a side, with their nodes if there are several."""
    by_node = {node: _gpus(side, node) for node in _nodes_of(side)}
    if len(nodes) == 1:
        return by_node[0]
    same: dict[str, list[int]] = {}
    for node, gpus in by_node.items():
        same.setdefault(gpus, []).append(node)
    return "; ".join(f"{gpus} of {_names(numbers, nodes)}" for gpus, numbers in same.items())


def _gpus(side: Iterable[Resources], node: int) -> str:
    """Name the GPUs of each process on a node, as in `GPU 0,1 | 2,3`."""
    devices = [",".join(resources.devices) for resources in side if resources.node == node]
    return f"GPU {' | '.join(devices)}"


def _nodes_of(side: Iterable[Resources]) -> list[int]:
    return sorted({resources.node for resources in side})


def _names(numbers: Sequence[int], nodes: Sequence[Node]) -> str:
    names = [nodes[number].name for number in numbers]
    if len(names) <= NAMED:
        return ", ".join(names)
    return f"{names[0]}, …, {names[-1]} ({len(names)} nodes)"
