"""Ranks of a group receive every bucket in order, and none waits for ever for another that hangs."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store

from arl.launch.network import LOOPBACK
from arl.sync.process_group import Group, reach_store, serve_store

SECONDS = 30.0


@settings(max_examples=10)
@given(sizes=st.lists(st.integers(1, 100_000), min_size=1, max_size=6))
def test_every_rank_receives_all_buckets_of_two_versions_in_order(sizes: list[int]) -> None:
    store = serve_store(LOOPBACK, SECONDS)
    versions = [
        [torch.full((size,), 10 * version + i, dtype=torch.uint8) for i, size in enumerate(sizes)] for version in (1, 2)
    ]

    def receive(rank: int) -> list[list[torch.Tensor]]:
        group = Group(reach_store(LOOPBACK, store.port, SECONDS), "weights", rank, 3, "gloo", SECONDS)
        received = []
        for _ in versions:
            received.append(list(group.broadcast(torch.empty(size, dtype=torch.uint8) for size in sizes)))
        group.close()
        return received

    with ThreadPoolExecutor(2) as threads:
        receivers = [threads.submit(receive, rank) for rank in (1, 2)]
        group = Group(store, "weights", 0, 3, "gloo", SECONDS)
        for flats in versions:
            group.send(flats)
        for receiver in receivers:
            for sent, received in zip(versions, receiver.result(SECONDS), strict=True):
                assert all(map(torch.equal, sent, received))
        group.close()


def test_a_rank_that_joins_and_then_hangs_ends_the_join_of_the_others_at_the_deadline() -> None:
    store = serve_store(LOOPBACK, SECONDS)
    hangs = threading.Event()

    def hang() -> None:
        prefix: Store = reach_store(LOOPBACK, store.port, SECONDS)
        for name in ("weights", "weights/", "cpu/"):
            prefix = PrefixStore(name, prefix)
        group = ProcessGroupGloo(prefix, 1, 2, timedelta(seconds=SECONDS))
        hangs.wait(SECONDS)  # it never takes part in the first broadcast
        del group

    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(hang)
        with pytest.raises(RuntimeError, match=r"(?i)timed out|timeout"):
            Group(store, "weights", 0, 2, "gloo", seconds=1.0)
        hangs.set()
        other.result(SECONDS)
