"""Choose the transport of a run, and refuse those that cannot work."""

import pytest

from arl.config.recipe import Recipe
from arl.errors import InputError
from arl.sync.choose import choose_transport
from arl.types import Transport

SGLANG = {"kind": "sglang"}
ALL: set[Transport] = {"file", "broadcast", "ipc"}
NO_IPC: set[Transport] = {"file", "broadcast"}
FILES: set[Transport] = {"file"}


def recipe(**sections: object) -> Recipe:
    base = {"model": {"path": "somewhere"}, "data": {"task": "running_checksum"}}
    return Recipe.model_validate(base | sections)


def chosen(given: Recipe, can: set[Transport], on_gpus: bool, shares_memory: bool = True) -> Transport:
    return choose_transport(
        given,
        backend_transports=can,
        one_process=False,
        on_gpus=on_gpus,
        shares_memory=shares_memory,
    )


def collocated(ranks: int = 1, **engine: object) -> Recipe:
    return recipe(mode="collocated", engine=SGLANG | engine, train={"ranks": ranks})


@pytest.mark.parametrize(
    ("given", "can", "on_gpus", "transport"),
    [
        (recipe(), ALL, False, "file"),
        (recipe(), ALL, True, "broadcast"),
        (recipe(rollout={"lag": 1}), ALL, True, "file"),
        (collocated(), NO_IPC, True, "file"),
        (collocated(), ALL, True, "ipc"),
        (collocated(replicas=2), ALL, True, "file"),
        (collocated(ranks=8, replicas=4, tensor_parallel=2), ALL, True, "ipc"),
        (recipe(sync={"transport": "broadcast"}), ALL, False, "broadcast"),
        (recipe(sync={"transport": "ipc"}, engine=SGLANG), ALL, False, "ipc"),
    ],
)
def test_auto_suits_the_devices_and_the_backend_and_a_wish_is_granted_where_it_can_be(
    given: Recipe, can: set[Transport], on_gpus: bool, transport: str
) -> None:
    assert chosen(given, can, on_gpus) == transport


@pytest.mark.parametrize(
    ("given", "on_gpus", "transport"),
    [
        (recipe(), False, "broadcast"),
        (recipe(), True, "broadcast"),
        (recipe(rollout={"lag": 1}), True, "file"),
        (recipe(sync={"transport": "file"}), False, "file"),
        (collocated(ranks=16, replicas=16), True, "file"),  # each engine is on the node of its ranks
    ],
)
def test_on_several_nodes_weights_are_broadcast_or_travel_as_files(
    given: Recipe, on_gpus: bool, transport: Transport
) -> None:
    assert chosen(given, ALL, on_gpus, shares_memory=False) == transport


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        (recipe(mode="collocated", sync={"transport": "broadcast"}), "NCCL joins no two processes on one GPU"),
        (recipe(engine=SGLANG, sync={"transport": "ipc"}), "on GPUs only mode collocated; use broadcast"),
        (
            recipe(mode="collocated", engine=SGLANG | {"replicas": 2}, sync={"transport": "ipc"}),
            r"engine\.replicas 2 × engine\.tensor_parallel 1 are more than train\.ranks 1; use as many ranks, or file",
        ),
    ],
)
def test_a_wish_that_these_gpus_cannot_grant_is_refused(given: Recipe, rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        chosen(given, ALL, on_gpus=True)
    assert chosen(given, ALL, on_gpus=False) == given.sync.transport


@pytest.mark.parametrize(
    ("sections", "one_process", "rule"),
    [
        ({"sync": {"transport": "memory"}}, False, "sync.transport memory: not in this world; use auto"),
        ({"sync": {"transport": "broadcast"}, "world": "virtual"}, True, "sync.transport broadcast: not in this world"),
        ({"sync": {"transport": "broadcast"}, "rollout": {"lag": 0}}, False, "with rollout.lag checkpoints copy the"),
    ],
)
def test_a_transport_that_its_world_or_a_lag_rules_out_is_refused(
    sections: dict[str, object], one_process: bool, rule: str
) -> None:
    with pytest.raises(InputError, match=rule):
        choose_transport(recipe(**sections), backend_transports=ALL, one_process=one_process, on_gpus=False)
