"""Measure the trainer's side of a weight update, version by version: `arl bench publication`.

random weights ─► Learner, as in a rank ─► reserve ─► gather into the buckets ─► claim ─► broadcast of every bucket

The first version allocates, and on a GPU pins, its memory, and the second one its own; later versions use both again.
One rank, and a group of one, because NCCL joins no two ranks on one device: so the wire is not measured.
"""

import statistics
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from msgspec import Struct

from arl.bench.trainer_bench import write_model
from arl.config.recipe import Train
from arl.launch.address import LOOPBACK
from arl.sync.broadcast_target import BroadcastTarget
from arl.sync.buckets import TensorSpec, bucket_bytes_of, make_buckets
from arl.sync.loading import unflatten_all
from arl.sync.process_group import Group
from arl.sync.published_versions import BufferPlace
from arl.sync.stores import serve_store
from arl.train.algorithms.ppo import PPO
from arl.train.learner import Learner

SECONDS = 60.0  # deadline of every wait
BUCKET_BYTES = 512 * 10**6  # the default of sync.bucket_megabytes
ON_GPU = "1.5B"
ON_CPU = "tiny"


class Publishing(Struct, frozen=True):
    """Hold the seconds of one version."""

    reserve: float
    gather: float  # what blocks training, with the one before
    broadcast: float


def bench_publication(versions: int) -> dict[str, Any]:
    """Publish `versions` versions from each place where buffers may lie: at least three, of which one is warm."""
    on_gpu = torch.cuda.is_available()
    shape = ON_GPU if on_gpu else ON_CPU
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as directory:
        write_model(shape, Path(directory))
        train = Train.model_validate({"minibatches": 1, "dtype": "bfloat16", "threads": 1})
        learner = Learner(directory, train, PPO())
    places: list[BufferPlace] = ["device", "host"] if on_gpu else ["host"]
    specs = learner.tensors()
    return {
        "device": torch.cuda.get_device_name() if on_gpu else "CPU",
        "shape": shape,
        "megabytes": round(bucket_bytes_of(specs) / 1e6, 1),
        "buckets": len(make_buckets(specs, BUCKET_BYTES)),
        "free_after_loading_gb": round(torch.cuda.mem_get_info()[0] / 1e9, 2) if on_gpu else None,
        "rows": [_measure(learner, specs, place, versions) for place in places],
    }


def _measure(learner: Learner, specs: Sequence[TensorSpec], place: BufferPlace, versions: int) -> dict[str, Any]:
    """Publish `versions` versions from buffers in `place`."""
    target = BroadcastTarget(BUCKET_BYTES, place)
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    group = Group(
        store=serve_store(LOOPBACK, SECONDS),
        name=f"bench-{place}",
        rank=0,
        size=1,
        backend=backend,
        seconds=SECONDS,
    )
    with closing(group):
        published = [_publish(learner, specs, target, group, version) for version in range(versions)]
    cold, second, *warm = published
    gigabytes = bucket_bytes_of(specs) / 1e9
    sent = statistics.median(one.broadcast for one in warm)
    return {
        "buffers": place,
        "cold": _milliseconds(cold),
        "second": _milliseconds(second),
        "warm": {
            name: round(statistics.median(_milliseconds(one)[name] for one in warm), 2)
            for name in Publishing.__struct_fields__
        },
        "broadcast_gigabytes_per_s": round(gigabytes / sent, 2),
    }


def _publish(
    learner: Learner, specs: Sequence[TensorSpec], target: BroadcastTarget, group: Group, version: int
) -> Publishing:
    """Take one version from the trainer's weights to the end of its broadcast, as a rank does."""
    buckets = make_buckets(specs, BUCKET_BYTES)
    start = perf_counter()
    flats = target.reserve(version, specs, SECONDS)
    reserved = perf_counter()
    learner.sharded.gather(buckets, flats)
    gathered = perf_counter()
    target.write(version, unflatten_all(flats, buckets))
    for flat in target.flats(target.claim(version, SECONDS)):
        group.broadcast(flat)
    return Publishing(
        reserve=reserved - start,
        gather=gathered - reserved,
        broadcast=perf_counter() - gathered,
    )


def _milliseconds(one: Publishing) -> dict[str, float]:
    return {name: round(1e3 * getattr(one, name), 2) for name in Publishing.__struct_fields__}
