"""Run one SGLang server of two processes on a CPU, each with half of every weight, and scheduled as on GPUs."""

import asyncio
from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from arl.types import Transport, WeightUpdate
from tests.engine import conftest
from tests.engine.conftest import Publish, ServerProcess, Weights, ask, complete, connect, within
from tests.processes import survivors
from tests.sync.sender import ThreadSender

pytestmark = pytest.mark.sglang
PROMPT = (1, 2, 3)
CHUNK = 64  # tokens


@pytest.fixture(scope="module")
def wide_server(sglang_python: str, old: Weights, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    argv, env = conftest.sglang_command(sglang_python, old.path)
    argv[argv.index("--tp-size") + 1] = "2"
    argv.remove("--disable-overlap-schedule")
    argv += ["--chunked-prefill-size", str(CHUNK)]
    running = conftest.start(argv, env, tmp_path_factory.mktemp("wide") / "log")
    yield running
    tree = psutil.Process(running.process.pid).children(recursive=True)
    running.end()
    assert not survivors(tree)


@pytest.mark.parametrize("transport", ["file", "broadcast", "ipc"])
def test_all_workers_of_a_server_take_the_weights(
    wide_server: ServerProcess, sender: ThreadSender, publish: Publish, transport: Transport, old: Weights, new: Weights
) -> None:
    async def scenario() -> None:
        async with connect(wide_server.url, sender=sender.shared, workers=2) as engine:
            for weights in (new, old):
                await engine.update_weights(publish(transport, engine.loaded_version + 1, weights.path))
                said = await complete(engine, ask("any", PROMPT, tokens=50))
                expected = weights.logprobs(PROMPT, said.token_ids)
                np.testing.assert_allclose(said.logprobs, expected, rtol=0, atol=2e-4)

    within(scenario)


def test_requests_retracted_amid_their_prefill_and_an_overlapped_pass_name_the_version_of_each_token(
    wide_server: ServerProcess, old: Weights, new: Weights
) -> None:
    """The pause comes at any moment; each token's logprob is that of its version's weights on all that was said."""
    prompts = [tuple((i + j) % 13 for j in range(CHUNK + 20 * i)) for i in range(6)]

    async def scenario() -> None:
        async with connect(wide_server.url, swap_seconds=60.0) as engine:
            await engine.update_weights(WeightUpdate(engine.loaded_version + 1, old.path))
            first = engine.loaded_version
            calls = [asyncio.create_task(complete(engine, ask(f"r{i}", p, 60))) for i, p in enumerate(prompts)]
            for weights in (new, old, new):
                await asyncio.wait(calls, timeout=0.5)
                await engine.update_weights(WeightUpdate(engine.loaded_version + 1, weights.path))
            spans = 0
            for prompt, said in zip(prompts, await asyncio.gather(*calls), strict=True):
                by_new = (np.array(said.policy_versions) - first) % 2 == 1
                expected = np.where(by_new, *(each.logprobs(prompt, said.token_ids) for each in (new, old)))
                np.testing.assert_allclose(said.logprobs, expected, rtol=0, atol=2e-4)
                spans += len(set(said.policy_versions))
            assert spans > len(prompts), "no request was open at a swap"

    within(scenario)


def test_workers_of_a_server_listen_on_loopback_alone(wide_server: ServerProcess) -> None:
    first = psutil.Process(wide_server.process.pid)
    sockets = [one for process in (first, *first.children(True)) for one in process.net_connections("inet")]
    assert {one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN} == {"127.0.0.1"}
