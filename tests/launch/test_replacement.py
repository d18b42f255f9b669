"""A process whose node is lost is started where there is room."""

from arl.launch.base import Node, Resources
from arl.launch.seats import another_place

GPUS = tuple("0123")


def test_an_engine_moves_to_free_gpus_of_a_node_that_is_left() -> None:
    nodes = [Node("n0", 8, GPUS), Node("n1", 8, GPUS), Node("n2", 8, GPUS)]
    engine = Resources(2, ("0", "1"), node=1)
    others = [Resources(2, ("0", "1", "2"), node=0), Resources(2, ("0", "1"), node=2), Resources(2, GPUS, node=1)]
    moved = another_place(engine, others, nodes, lost={1})
    assert moved == Resources(2, ("2", "3"), node=2)


def test_there_is_no_place_where_every_gpu_that_is_left_is_used() -> None:
    nodes = [Node("n0", 8, GPUS), Node("n1", 8, GPUS)]
    assert another_place(Resources(2, ("0",), node=1), [Resources(2, GPUS)], nodes, lost={1}) is None
    assert another_place(Resources(2), [], nodes, lost={0, 1}) is None


def test_on_cpus_it_moves_to_the_node_whose_processes_have_the_fewest_threads() -> None:
    nodes = [Node("n0", 8), Node("n1", 8), Node("n2", 8)]
    others = [Resources(8), Resources(2, node=2)]
    moved = another_place(Resources(4, node=1), others, nodes, lost={1})
    assert moved == Resources(4, node=2)
