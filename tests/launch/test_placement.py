"""Processes are placed over several nodes: an engine on one node, ranks evenly on as few as possible.

Too few GPUs are refused with what each side asks for, how many there are, and what helps.
"""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.config.recipe import Recipe
from arl.errors import RecipeError
from arl.launch.base import Node, Resources
from arl.launch.placement import Placement, another_place, fitting_ranks, place
from arl.run.machines import resolve_auto

GPUS = tuple("0123")


def recipe(mode: str = "disaggregated", *, replicas: int = 1, ranks: int = 1, width: int = 1, **more: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "mode": mode,
            "model": {"path": "m"},
            "data": {"task": "long_tail"},
            "engine": {"kind": "sglang", "replicas": replicas, "tensor_parallel": width},
            "train": {"ranks": ranks, **more.pop("train", {})},
            **more,
        }
    )


def boxes(count: int, gpus: int = 8, cores: int = 64) -> list[Node]:
    devices = tuple(map(str, range(gpus)))
    return [Node(f"n{number}", cores, devices, address=f"10.0.0.{number}") for number in range(count)]


def test_ranks_are_equally_many_on_each_node_and_a_copy_of_the_weights_is_kept_on_each() -> None:
    placed = place(recipe(replicas=4, ranks=12), boxes(2))
    assert Counter(rank.node for rank in placed.ranks) == {0: 4, 1: 8}  # no two nodes have six each
    assert placed.ranks_per_node is None
    even = recipe(replicas=16, ranks=16)
    placed = place(even, boxes(4))
    assert placed.ranks_per_node == 8
    assert resolve_auto(even, boxes(4)).train.shard_ranks == 8
    assert resolve_auto(recipe(replicas=4, ranks=4), boxes(4)).train.shard_ranks is None


def test_an_engine_that_fits_on_no_node_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"tensor_parallel 8: no node has so many GPUs left .*\(4, 4, 4 by node\)"):
        place(recipe(width=8), boxes(3, gpus=4))


def test_on_cpus_the_trainer_has_the_last_nodes_and_engines_the_others_whatever_their_workers() -> None:
    nodes = boxes(3, gpus=0, cores=4)
    placed = place(recipe(replicas=2, width=2), nodes)
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
        placed = place(recipe(mode, replicas=replicas, ranks=ranks, width=width), machines)
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


def test_too_few_gpus_are_refused_with_what_each_side_needs() -> None:
    words = r"8 GPUs are needed, and there are 4 \(--gpus 4xH100\): engines need 4 \(engine\.replicas .* the trainer 4 "
    with pytest.raises(RecipeError, match=words):
        place(recipe(replicas=2, ranks=4, width=2), [Node("box", 16, GPUS, planned_by="--gpus 4xH100")])
    with pytest.raises(RecipeError, match=r"5 GPUs are needed, and there are 4 \(visible\).*=.* for the CPU$"):
        place(recipe("collocated", replicas=4, ranks=4, eval={"problems": 8, "every": 10}), [Node("box", 16, GPUS)])


def test_engines_and_ranks_leave_the_cores_that_the_recipe_gives_to_reward_workers() -> None:
    def threads(**reward: Any) -> tuple[int, int]:
        placed = place(recipe(engine={"kind": "embedded"}, reward=reward), [Node("here", 16)])
        return placed.engines[0].threads, placed.ranks[0].threads

    assert threads() == threads(workers=8) == (8, 8)
    assert threads(workers=2, environment={"OMP_NUM_THREADS": 3}) == (5, 5)
    assert threads(workers=8, environment={"OMP_NUM_THREADS": 8}) == (4, 4)


def test_a_process_whose_node_is_lost_moves_to_free_gpus_or_to_the_node_with_the_fewest_threads_in_use() -> None:
    nodes = boxes(3, gpus=4)
    others = [Resources(2, ("0", "1", "2"), node=0), Resources(2, ("0", "1"), node=2), Resources(2, GPUS, node=1)]
    engine = Resources(2, ("0", "1"), node=1)
    assert another_place(engine, others, nodes, lost={1}) == Resources(2, ("2", "3"), node=2)
    assert another_place(engine, [Resources(2, GPUS)], nodes[:2], lost={1}) is None
    others = [Resources(8), Resources(2, node=2)]
    assert another_place(Resources(4, node=1), others, boxes(3, gpus=0), lost={1}) == Resources(4, node=2)
    assert another_place(Resources(2), [], nodes, lost={0, 1, 2}) is None


def test_a_resumed_run_takes_the_ranks_that_fit_beside_engines_and_evaluation_or_is_refused() -> None:
    elastic = {"min_ranks": 1}
    assert fitting_ranks(recipe(ranks=8, replicas=2, train=elastic, eval={"every": 5}), 8) == 5
    assert fitting_ranks(recipe("collocated", ranks=8, replicas=8, train=elastic), 6) == 6
    sharded = {"shard_ranks": 8, "min_ranks": 8}
    with pytest.raises(RecipeError, match=r"min_ranks 8: 24 GPUs are left, on which 0 ranks fit .* as a multiple"):
        fitting_ranks(recipe(ranks=16, replicas=18, train=sharded), 24)


@given(st.integers(1, 16), st.integers(1, 8), st.integers(1, 8), st.integers(1, 64))
def test_ranks_that_fit_divide_as_sharding_needs_and_leave_the_engines_their_gpus(
    copies: int, shard_ranks: int, replicas: int, devices: int
) -> None:
    ranks = copies * shard_ranks
    elastic = {"shard_ranks": shard_ranks, "min_ranks": shard_ranks}
    try:
        found = fitting_ranks(recipe(ranks=ranks, replicas=replicas, train=elastic), devices)
    except RecipeError:
        assert devices < replicas + shard_ranks
        return
    assert found % shard_ranks == 0
    assert shard_ranks <= found <= ranks
    assert found + replicas <= devices
    assert found == ranks or found + shard_ranks + replicas > devices
