"""Prompts of a pass are computed as one prefix tree: nothing twice, and what separate forwards compute."""

import asyncio

import numpy as np

from arl.engine.embedded.batching import EmbeddedEngine
from arl.models.load import load_model
from arl.types import Completion
from tests.engine.conftest import Weights, ask, complete, within


def test_a_resumed_group_shares_its_prompts_prefill(old: Weights) -> None:
    """Two groups of 4, arriving in turns: each prompt is computed once, before and after the cache was dropped."""
    passes: list[tuple[int, int]] = []
    prompts = [(group,) * 26 for group in (0, 1)]
    enough = asyncio.Event()

    def cost(prefill: int, decode: int) -> float:
        passes.append((prefill, decode))
        if len(passes) == 5:
            enough.set()
        return 0.0

    async def scenario() -> tuple[int, list[Completion]]:
        async with EmbeddedEngine(load_model(old.path, "float32"), slots=8, step_cost=cost) as engine:
            requests = [ask(f"r{i}", prompts[i % 2], 30, seed=i) for i in range(8)]
            answers = asyncio.gather(*(complete(engine, request) for request in requests))
            await enough.wait()
            await engine.pause()
            said = len(passes)
            await engine.resume()
            return said, await answers

    said, answers = within(scenario)
    assert passes[0] == (2 * 26, 0)
    continuations = {(i % 2, a.token_ids[: n + 1]) for i, a in enumerate(answers) for n in range(said)}
    assert passes[said] == (2 * 26 + len(continuations), 0)
    assert all(prefill == 0 for prefill, _ in passes[1:said] + passes[said + 1 :])
    for i, answer in enumerate(answers):
        reference = old.logprobs(prompts[i % 2], answer.token_ids)
        np.testing.assert_allclose(answer.logprobs, reference, rtol=0, atol=1e-4)
