"""Null engines are real servers: the real clients read them, swap their weights and leave nothing of them behind."""

import asyncio
import json
import socket
import subprocess
import sys

import pytest

from arl import clock
from arl.bench.null_cluster import ClusterShape, NullCluster, open_cluster
from arl.bench.scale_rung import measure_rung
from arl.config.capabilities import KvPolicy
from arl.engine.http.engine_client import HttpEngine
from arl.engine.router import Router
from arl.types import GenerateRequest, SamplingParams, WeightUpdate

LONGEST = 96
LENGTH = 1 + 59  # of seed 59


def request(number: int) -> GenerateRequest:
    sampling = SamplingParams(max_new_tokens=LONGEST, seed=59)
    return GenerateRequest(f"r{number}", tuple(range(20)), sampling, affinity=f"g{number}")


async def versions_of(router: Router, number: int, begun: asyncio.Queue[int]) -> list[int]:
    versions: list[int] = []
    async for increment in router.generate(request(number)):
        versions += increment.policy_versions
        assert len(increment.token_ids) == len(increment.logprobs) == len(increment.policy_versions)
        begun.put_nowait(number)
    return versions


async def swap_while_open(cluster: NullCluster, kv_policy: KvPolicy) -> list[list[int]]:
    (first,), (second,) = cluster.urls
    async with (
        HttpEngine(first, generate_seconds=30, swap_seconds=30, kv_policy=kv_policy) as one,
        HttpEngine(second, generate_seconds=30, swap_seconds=30, kv_policy=kv_policy) as two,
        asyncio.timeout(120),
    ):
        router = Router([one, two])
        begun: asyncio.Queue[int] = asyncio.Queue()
        requests = [asyncio.create_task(versions_of(router, number, begun)) for number in range(8)]
        await begun.get()
        await router.update_weights(WeightUpdate(1, "null"))
        assert router.loaded_version == 1
        return [await request for request in requests]


@pytest.mark.parametrize("kv_policy", ["recompute", "keep"])
def test_requests_that_a_swap_interrupts_are_as_long_as_they_would_have_been(kv_policy: KvPolicy) -> None:
    async def main() -> None:
        slow = ClusterShape(engines=2, processes=2, rate=200.0, interval=16, longest=LONGEST)
        async with open_cluster(slow) as cluster:
            versions = await swap_while_open(cluster, kv_policy)
            totals = await cluster.totals()
        assert [len(of_request) for of_request in versions] == [LENGTH] * 8
        assert all(of_request == sorted(of_request) for of_request in versions)
        assert {version for of_request in versions for version in of_request} == {0, 1}
        assert totals.tokens == 8 * LENGTH
        assert totals.open == 0

    clock.run(main)


def test_null_engines_end_when_their_standard_input_closes_as_it_does_when_their_parent_dies() -> None:
    command = [sys.executable, "-m", "arl.bench.null_server", "--engines", "2"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        urls = json.loads(process.stdout.readline())
        process.stdin.close()
        assert process.wait(timeout=60) == 0
    for url in urls:
        host, _, port = url.removeprefix("http://").partition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))


def test_a_rung_counts_what_the_engines_sent() -> None:
    shape = ClusterShape(engines=1, processes=1, rate=40.0, interval=16, longest=LONGEST)
    rung = measure_rung(shape, warm_seconds=2.0, window_seconds=1.0)
    assert rung.tokens <= rung.events * shape.interval
    assert rung.events > rung.requests > 0
    assert 0 < rung.open_requests <= 512
    assert 0 < rung.achieved < 1.5
    assert rung.cpu_seconds > 0
    assert rung.swap_tokens > 0
