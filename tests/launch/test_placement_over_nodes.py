"""Processes are placed over several nodes: an engine on one node, ranks evenly on as few as possible."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.config.recipe import Recipe
from arl.errors import RecipeError
from arl.launch.base import Node
from arl.launch.placement import Placement, place
from arl.run.machines import resolve_auto


def recipe(mode: str = "disaggregated", replicas: int = 1, ranks: int = 1, width: int = 1) -> Recipe:
    return Recipe.model_validate(
        {
            "mode": mode,
            "model": {"path": "m"},
            "data": {"task": "long_tail"},
            "engine": {"kind": "sglang", "replicas": replicas, "tensor_parallel": width},
            "train": {"ranks": ranks},
        }
    )


def boxes(count: int, gpus: int = 8, cores: int = 64) -> list[Node]:
    devices = tuple(map(str, range(gpus)))
    return [Node(f"n{number}", cores, devices, address=f"10.0.0.{number}") for number in range(count)]


def test_two_boxes_hold_twelve_engines_and_four_ranks_of_one_node() -> None:
    placed = place(recipe(replicas=12, ranks=4), boxes(2))
    assert Counter(engine.node for engine in placed.engines) == {0: 8, 1: 4}
    assert [(rank.node, rank.devices) for rank in placed.ranks] == [(1, (str(i),)) for i in range(4, 8)]


def test_ranks_are_equally_many_on_each_node_and_a_copy_of_the_weights_is_kept_on_each() -> None:
    placed = place(recipe(replicas=4, ranks=12), boxes(2))
    assert Counter(rank.node for rank in placed.ranks) == {0: 4, 1: 8}  # no two nodes have six each
    assert placed.ranks_per_node is None
    even = recipe(replicas=16, ranks=16)
    placed = place(even, boxes(4))
    assert placed.ranks_per_node == 8
    assert resolve_auto(even, boxes(4)).train.shard_ranks == 8
    assert resolve_auto(recipe(replicas=4, ranks=4), boxes(4)).train.shard_ranks is None


def test_a_node_without_gpus_is_the_controllers_alone() -> None:
    nodes = [Node("cpu", 16), *boxes(2)]
    placed = place(recipe(replicas=8, ranks=8), nodes)
    assert {resources.node for resources in placed.engines} == {1}
    assert {resources.node for resources in placed.ranks} == {2}
    assert placed.nodes == [0, 1, 2]


def test_an_engine_that_fits_on_no_node_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"tensor_parallel 8: no node has so many GPUs left .*\(4, 4, 4 by node\)"):
        place(recipe(width=8), boxes(3, gpus=4))


def test_on_cpus_the_trainer_has_the_last_nodes_and_engines_the_others() -> None:
    nodes = boxes(3, gpus=0, cores=4)
    placed = place(recipe(replicas=2), nodes)
    assert [engine.node for engine in placed.engines] == [0, 1]
    assert [rank.node for rank in placed.ranks] == [2]
    assert {resources.threads for resources in [*placed.engines, *placed.ranks]} == {4}


@given(
    mode=st.sampled_from(["disaggregated", "collocated"]),
    replicas=st.integers(1, 12),
    ranks=st.integers(1, 24),
    width=st.sampled_from([1, 2, 4]),
    nodes=st.integers(1, 5),
    gpus=st.integers(1, 8),
)
def test_no_two_processes_of_a_side_share_a_gpu_wherever_they_are(
    mode: str, replicas: int, ranks: int, width: int, nodes: int, gpus: int
) -> None:
    machines = boxes(nodes, gpus)
    try:
        placed = place(recipe(mode, replicas, ranks, width), machines)
    except RecipeError:
        return
    engines = [(one.node, device) for one in placed.engines for device in one.devices]
    trainer = [(one.node, device) for one in placed.ranks for device in one.devices]
    assert len(set(engines)) == len(engines) == replicas * width
    assert len(set(trainer)) == len(trainer) == ranks
    if mode == "disaggregated":
        assert not set(engines) & set(trainer)
    assert all(device in machines[node].devices for node, device in [*engines, *trainer])
    _check_threads(placed, machines, mode)


def _check_threads(placed: Placement, machines: list[Node], mode: str) -> None:
    """Together the processes that work at once do not have more threads than their node has cores."""
    for number, machine in enumerate(machines):
        engines = [one.threads for one in placed.engines if one.node == number]
        ranks = [one.threads for one in placed.ranks if one.node == number]
        at_once = [engines, ranks] if mode == "collocated" else [engines + ranks]
        for side in at_once:
            assert sum(side) <= max(machine.cores, len(side))
