"""Interrupt a real SGLang server whose scheduling overlaps, as on GPUs: a pass has begun before the last one is read.

On a CPU arl starts servers without overlap (server_command.CPU_SWITCHES), and streams of torch.cpu do nothing. The
order of the scheduler's steps is that of a GPU: tokens follow an abort.
"""

import asyncio
import json
from collections.abc import Iterator

import numpy as np
import pytest

from arl.engine.base import Engine
from arl.types import Completion, GenerateRequest, WeightUpdate
from tests.engine import conftest
from tests.engine.conftest import ServerProcess, Weights, ask, connect, within

pytestmark = pytest.mark.sglang
SWAPS = 6
TOKENS = 150


@pytest.fixture(scope="module")
def overlapped_server(
    sglang_python: str, old: Weights, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    argv, env = conftest.sglang_command(sglang_python, old.path)
    argv.remove("--disable-overlap-schedule")
    running = conftest.start(argv, env, tmp_path_factory.mktemp("overlapped") / "log")
    yield running
    running.end()


@pytest.mark.parametrize("releases_memory", [True, False])
def test_swaps_that_interrupt_overlapped_passes_lose_no_token_and_repeat_none(
    overlapped_server: ServerProcess, releases_memory: bool, old: Weights, new: Weights
) -> None:
    """Each token's logprob is that of the model of its version behind all tokens before it, up to the whole budget."""
    requests = [ask(f"o{i}", (1, i % 13), TOKENS + i) for i in range(20)]  # more than the server's slots

    async def scenario() -> tuple[list[Completion], int]:
        async with connect(overlapped_server.url, releases_memory=releases_memory) as engine:
            assert json.loads(await engine._http.command("/server_info"))["disable_overlap_schedule"] is False
            await engine.update_weights(WeightUpdate(engine.loaded_version + 1, old.path))
            first = engine.loaded_version
            spoke = asyncio.Event()
            calls = [asyncio.create_task(_listen(engine, request, spoke)) for request in requests]
            recomputed = 0
            for swap in range(1, SWAPS + 1):
                await spoke.wait()
                await engine.pause()
                report = await engine.update_weights(WeightUpdate(first + swap, (old, new)[swap % 2].path))
                recomputed += report.recomputed_tokens
                spoke.clear()
                await engine.resume()
            assert recomputed > 0
            return await asyncio.gather(*calls), first

    answers, first = within(scenario)
    assert {version - first for answer in answers for version in answer.policy_versions} == set(range(SWAPS + 1))
    for request, answer in zip(requests, answers, strict=True):
        assert len(answer.token_ids) == request.sampling.max_new_tokens
        assert list(answer.policy_versions) == sorted(answer.policy_versions)
        by_new = (np.array(answer.policy_versions) - first) % 2 == 1
        both = [weights.logprobs(request.input_ids, answer.token_ids) for weights in (new, old)]
        expected = np.where(by_new, *both)
        np.testing.assert_allclose(answer.logprobs, expected, rtol=0, atol=2e-4)


async def _listen(engine: Engine, request: GenerateRequest, spoke: asyncio.Event) -> Completion:
    """Complete a request; set `spoke` at each of its increments."""
    ids: list[int] = []
    logprobs: list[float] = []
    versions: list[int] = []
    async for increment in engine.generate(request):
        ids += increment.token_ids
        logprobs += increment.logprobs
        versions += increment.policy_versions
        spoke.set()
    assert increment.finish_reason is not None
    return Completion(tuple(ids), tuple(logprobs), tuple(versions), increment.finish_reason)
