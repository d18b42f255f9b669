"""Measure what a broadcast of weights and a computation on the same device cost each other: `arl bench broadcast`.

    matrix products alone ─► a broadcast alone ─► both at once, the broadcast in a thread as in a run

The group has one rank, because NCCL joins no two on one device: so this is the copy from pinned memory, the streams and
the launches of a broadcast, and nothing of the wire. On a CPU it is gloo, over fewer bytes.
"""

import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from arl.launch.address import LOOPBACK
from arl.sync.process_group import Group
from arl.sync.stores import serve_store

SECONDS = 60.0  # deadline of the group
BUCKETS = 4
GPU_BYTES = 500 * 10**6
CPU_BYTES = 20 * 10**6
GPU_WIDTH = 8192  # of the matrices
CPU_WIDTH = 512
PRODUCTS = 30


def bench_broadcast(repeats: int) -> dict[str, Any]:
    """Measure medians over `repeats` rounds, after one that warms up."""
    on_gpu = torch.cuda.is_available()
    num_bytes = GPU_BYTES if on_gpu else CPU_BYTES
    group = Group(
        store=serve_store(LOOPBACK, SECONDS),
        name="bench",
        rank=0,
        size=1,
        backend="nccl" if on_gpu else "gloo",
        seconds=SECONDS,
    )
    flats = [torch.ones(num_bytes // BUCKETS, dtype=torch.uint8, pin_memory=on_gpu) for _ in range(BUCKETS)]
    products = _products(on_gpu)

    def broadcast() -> None:
        for flat in flats:
            group.broadcast(flat)

    with closing(group):
        _, *rounds = [_round(products, broadcast) for _ in range(repeats + 1)]
    medians = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    return {
        "device": torch.cuda.get_device_name() if on_gpu else "CPU",
        "megabytes": num_bytes / 1e6,
        **{f"{name}_ms": round(1e3 * seconds, 2) for name, seconds in medians.items()},
        "products_slowed": round(medians["products_beside"] / medians["products_alone"], 3),
        "broadcast_slowed": round(medians["broadcast_beside"] / medians["broadcast_alone"], 3),
        "broadcast_gigabytes_per_s": round(num_bytes / 1e9 / medians["broadcast_alone"], 2),
    }


def _products(on_gpu: bool) -> Callable[[], None]:
    """Return a computation that keeps the device busy and waits until it is done."""
    width = GPU_WIDTH if on_gpu else CPU_WIDTH
    device = "cuda" if on_gpu else "cpu"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    left: Tensor = torch.randn(width, width, device=device, dtype=dtype)
    right = torch.empty_like(left)

    def run() -> None:
        for _ in range(PRODUCTS):
            torch.mm(left, left, out=right)
        if on_gpu:
            torch.cuda.current_stream().synchronize()

    return run


def _round(products: Callable[[], None], broadcast: Callable[[], None]) -> dict[str, float]:
    """Return the seconds of each alone, and of each while the other runs."""
    alone = {"products_alone": _timed(products), "broadcast_alone": _timed(broadcast)}
    with ThreadPoolExecutor(1) as thread:
        sending = thread.submit(_timed, broadcast)
        products_beside = _timed(products)
        beside = {"products_beside": products_beside, "broadcast_beside": sending.result()}
    return alone | beside


def _timed(work: Callable[[], None]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start
