"""Hold every engine to the same contract: the one in this process, and those behind HTTP."""

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

from arl.config.capabilities import KvPolicy
from arl.engine.base import Engine, Load
from arl.engine.embedded.batching import EmbeddedEngine
from arl.engine.http.engine_client import HttpEngine
from arl.errors import EngineError
from arl.types import Completion, GenerateRequest, Increment, ScoreRequest, TokenScores, WeightUpdate
from tests.engine.conftest import CONTEXT, EOS, REAL, SWAPPED_TOKENS, VOCAB, Opened, Weights, ask, complete, within

PROMPTS = [tuple((7 * i + j) % 13 for j in range(1 + 5 * i)) for i in range(6)]


def assert_close(logprobs: tuple[float, ...], reference: np.ndarray) -> None:
    """Compare logprobs of enlarged weights in float32. test_agreement.py is stricter, with ordinary weights."""
    differences = np.abs(np.array(logprobs) - reference)
    assert len(differences) < 50 or differences.mean() <= 5e-6  # of a few, one may be most of the mean
    assert differences.max() <= 2e-4


def test_logprobs_and_ids_are_those_of_the_model(opened: Opened, old: Weights) -> None:
    """Ids in; ids, logprobs and versions out, equal to a full forward pass of the stock model."""

    async def scenario() -> list[Completion]:
        async with opened() as engine:
            requests = [ask(f"r{i}", prompt, 40, seed=i, temperature=0.5 + i % 2) for i, prompt in enumerate(PROMPTS)]
            answers = await asyncio.gather(*(complete(engine, request) for request in requests))
            assert {v for a in answers for v in a.policy_versions} == {engine.loaded_version}
            return answers

    for i, (prompt, answer) in enumerate(zip(PROMPTS, within(scenario), strict=True)):
        assert len(answer.token_ids) == 40
        assert answer.finish_reason == "length"
        assert_close(answer.logprobs, old.logprobs(prompt, answer.token_ids, 0.5 + i % 2))


def test_the_scores_of_given_tokens_are_those_of_the_model(opened: Opened, old: Weights) -> None:
    """A prompt of three tokens, and fifty more; then one of two tokens, at the same time."""
    sequence = tuple((7 * i) % 13 for i in range(53))
    requests = [ScoreRequest("a", sequence, start=3, top_k=4), ScoreRequest("b", sequence[5:7], start=1, top_k=4)]

    async def scenario() -> list[TokenScores]:
        async with opened() as engine:
            assert isinstance(engine, EmbeddedEngine | HttpEngine)
            return await asyncio.gather(*(engine.score(request) for request in requests))

    for request, scores in zip(requests, within(scenario), strict=True):
        at = slice(request.start, None)
        expected = old.logprobs(request.token_ids[: request.start], request.token_ids[request.start :])
        np.testing.assert_allclose(scores.logprobs[at], expected, rtol=0, atol=1e-5)
        with torch.no_grad():
            logits = old.stock(torch.tensor([request.token_ids])).logits[0, request.start - 1 : -1]
        top = logits.log_softmax(-1).topk(4)
        np.testing.assert_allclose(scores.top_logprobs[at], top.values, rtol=0, atol=1e-5)
        assert np.array_equal(scores.top_ids[at], top.indices)
        assert not scores.logprobs[: request.start].any()


def test_a_stop_token_ends_a_request_and_is_its_last_token(opened: Opened, repeatable: dict[str, Any]) -> None:
    async def scenario() -> tuple[Completion, Completion, int]:
        async with opened() as engine:
            free = await complete(engine, ask("free", tokens=60, **repeatable))
            stop = free.token_ids[10]
            stopped = ask("stopped", tokens=60, stop_token_ids=(stop, EOS), **repeatable)
            return free, await complete(engine, stopped), stop

    free, stopped, stop = within(scenario)
    first = min(i for i, token in enumerate(free.token_ids) if token in (stop, EOS))
    assert stopped.token_ids == free.token_ids[: first + 1]
    assert stopped.finish_reason == "stop"


def test_a_request_draws_the_same_tokens_alone_and_in_a_crowd(opened: Opened, repeatable: dict[str, Any]) -> None:
    """64 requests through 16 slots: whatever shares the batch, a request's sample is its own."""

    async def scenario() -> None:
        async with opened() as engine:
            crowd = [ask(f"c{i}", PROMPTS[i % 6], 5 + 3 * i % 50, seed=i % 10, **repeatable) for i in range(64)]
            together = await asyncio.gather(*(complete(engine, request) for request in crowd))
            for i in (0, 17, 63):
                assert (await complete(engine, crowd[i])).token_ids == together[i].token_ids

    within(scenario)


@pytest.mark.parametrize("options", [{}, {"kv_policy": "keep"}, {"releases_memory": True}])
def test_a_pause_is_invisible_to_an_open_request(
    opened: Opened, options: dict[str, Any], old: Weights, repeatable: dict[str, Any]
) -> None:
    """Same tokens as without it, and no time counted as busy meanwhile; pausing twice is pausing once.

    An engine that has released its memory loads its weights again, if it is given no new ones.
    """

    async def scenario() -> Completion:
        async with opened(**options) as engine:
            undisturbed = await complete(engine, ask("plain", tokens=450, **repeatable))
            said: list[int] = []
            started = asyncio.Event()
            task = asyncio.create_task(_note(engine, ask("paused", tokens=450, **repeatable), said, started))
            await started.wait()
            await engine.pause()
            await engine.pause()
            busy, late = engine.busy_seconds, asyncio.create_task(complete(engine, ask("late", tokens=3)))
            for _ in range(50):
                await asyncio.sleep(0)
            assert engine.busy_seconds == busy
            assert len(said) < 450
            assert not late.done()
            await engine.resume()
            await task
            assert tuple(said) == undisturbed.token_ids
            assert len((await late).token_ids) == 3
            await engine.pause()
            await engine.update_weights(WeightUpdate(engine.loaded_version + 1, old.path))
            await engine.resume()
            return await complete(engine, ask("after", tokens=30))

    after = within(scenario)
    assert_close(after.logprobs, old.logprobs((1, 2, 3), after.token_ids))


async def _note(engine: Engine, request: GenerateRequest, said: list[int], started: asyncio.Event) -> None:
    async for increment in engine.generate(request):
        said += increment.token_ids
        started.set()


@pytest.mark.parametrize("kv_policy", ["recompute", "keep"])
def test_two_swaps_midway_span_three_versions(opened: Opened, old: Weights, new: Weights, kv_policy: KvPolicy) -> None:
    """Every token carries the version that sampled it, at once; under recompute its logprob is that model's own.

    A swap costs the cache of all that was computed, unless it is kept.
    """
    prompt = PROMPTS[3]

    async def scenario() -> tuple[list[Increment], int]:
        async with opened(kv_policy) as engine:
            version = engine.loaded_version
            swaps = [WeightUpdate(version + 1, new.path), WeightUpdate(version + 2, old.path)]
            increments: list[Increment] = []
            async for increment in engine.generate(ask("swapped", prompt, SWAPPED_TOKENS)):
                increments.append(increment)
                if version in increment.policy_versions and swaps:
                    version += 1
                    report = await engine.update_weights(swaps.pop(0))
                    assert report.version == engine.loaded_version == version
                    assert 0 <= report.pause_seconds <= report.seconds
                    known = len(prompt) + sum(len(said.token_ids) for said in increments)
                    assert (report.recomputed_tokens >= known) == (kv_policy == "recompute")
            return increments, version

    increments, version = within(scenario)
    ids = tuple(t for i in increments for t in i.token_ids)
    logprobs = tuple(p for i in increments for p in i.logprobs)
    versions = np.array([v for i in increments for v in i.policy_versions])
    assert len(ids) == SWAPPED_TOKENS
    assert sorted(set(versions)) == [version - 2, version - 1, version]
    assert (np.diff(versions) >= 0).all()
    fresh = np.where(versions == version - 1, new.logprobs(prompt, ids), old.logprobs(prompt, ids))
    if kv_policy == "recompute":
        assert_close(logprobs, fresh)
    else:
        after = versions > version - 2
        assert_close(tuple(np.array(logprobs)[~after]), fresh[~after])
        assert np.abs(np.array(logprobs) - fresh)[after].max() > 1e-2, "the old cache should show"


IMPOSSIBLE = {
    "this id is open already": ask("good"),
    "empty": ask("bad", ()),
    "outside the vocabulary": ask("bad", (1, VOCAB)),
    "exceed the model's context": ask("bad", (1,) * (CONTEXT - 9), 10),
}


@pytest.mark.parametrize("rule", IMPOSSIBLE)
def test_an_impossible_request_is_refused_by_name_and_harms_no_other(opened: Opened, rule: str) -> None:
    async def scenario() -> None:
        async with opened() as engine:
            good = asyncio.create_task(complete(engine, ask("good", (1,) * (CONTEXT - 10), 10)))
            await asyncio.sleep(0)
            with pytest.raises(EngineError, match=f"request {IMPOSSIBLE[rule].request_id}: .*{rule}"):
                await complete(engine, IMPOSSIBLE[rule])
            assert len((await good).token_ids) == 10

    within(scenario)


def test_a_replica_reports_what_it_has_to_do(opened: Opened) -> None:
    """SGLang's report may be a few passes old, and counts a prefix once."""

    async def scenario() -> None:
        async with opened() as engine:
            assert isinstance(engine, EmbeddedEngine | HttpEngine)
            idle = await settled(engine, 0)
            assert (idle.running, idle.waiting, idle.tokens, idle.slots) == (0, 0, 0, 16)
            calls = [asyncio.create_task(complete(engine, ask(f"c{i}", (1,) * 50, tokens=400))) for i in range(20)]
            busy = await settled(engine, 20)
            assert busy.tokens > 0
            assert busy.free(0, 0) <= 1 - 20 / 16
            for call in calls:
                call.cancel()
            await settled(engine, 0)

    within(scenario)


async def settled(engine: EmbeddedEngine | HttpEngine, requests: int) -> Load:
    """Return the engine's report once it counts so many requests; `within` bounds the wait."""
    load = await engine.report()
    while load.running + load.waiting != requests:
        await asyncio.sleep(0)
        load = await engine.report()
    return load


def test_weights_that_cannot_be_loaded_leave_the_old_ones_in_use(opened: Opened, old: Weights) -> None:
    async def scenario() -> Completion:
        async with opened() as engine:
            with pytest.raises(EngineError, match="nowhere"):
                await engine.update_weights(WeightUpdate(engine.loaded_version + 1, old.path + "/nowhere"))
            with pytest.raises(EngineError, match="older"):
                await engine.update_weights(WeightUpdate(engine.loaded_version - 1, old.path))
            return await complete(engine, ask("after"))

    answer = within(scenario)
    assert_close(answer.logprobs, old.logprobs((1, 2, 3), answer.token_ids))


@pytest.mark.parametrize("kv_policy", ["recompute", "keep"])
def test_a_storm_of_swaps_and_aborts_changes_no_sample(
    opened: Opened, old: Weights, kv_policy: KvPolicy, repeatable: dict[str, Any]
) -> None:
    """Equal weights, rising versions: every survivor says what it says undisturbed; versions never fall."""
    requests = [
        ask(f"s{i}", PROMPTS[i % 6], 1 + 37 * i % 150, seed=i, stop_token_ids=(EOS,), **repeatable) for i in range(48)
    ]

    async def quit_early(engine: Engine, request: GenerateRequest) -> None:
        iterator = engine.generate(request)
        await anext(iterator)
        await iterator.aclose()  # type: ignore[attr-defined]

    async def scenario() -> None:
        async with opened(kv_policy) as engine:
            calm = await asyncio.gather(*(complete(engine, request) for request in requests))
            quitters = [ask(f"q{i}", tokens=300, seed=i) for i in range(12)]
            leaving = [asyncio.create_task(quit_early(engine, request)) for request in quitters]
            storm = [asyncio.create_task(complete(engine, request)) for request in requests]
            while not all(task.done() for task in storm):
                await engine.update_weights(WeightUpdate(engine.loaded_version + 1, old.path))
                await asyncio.wait(storm, timeout=0.02)
            for before, task in zip(calm, storm, strict=True):
                after = await task
                assert after.token_ids == before.token_ids
                assert after.finish_reason == before.finish_reason
                assert list(after.policy_versions) == sorted(after.policy_versions)
            await asyncio.gather(*leaving)

    within(scenario)


@pytest.mark.parametrize("kind", [REAL], indirect=True)
@pytest.mark.parametrize("kv_policy", ["recompute", "keep"])
def test_no_prefix_of_the_old_weights_is_served_under_the_new(
    opened: Opened, old: Weights, new: Weights, kv_policy: KvPolicy
) -> None:
    """Ask again after a swap with a prompt that the prefix cache holds; under keep while another request is open."""
    prompt = tuple(i % 13 for i in range(100))

    async def scenario() -> tuple[Completion, Completion]:
        async with opened(kv_policy) as engine:
            before = await complete(engine, ask("before", prompt))
            spoke = asyncio.Event()
            staying = asyncio.create_task(_note(engine, ask("staying", prompt, 400), [], spoke))
            await spoke.wait()
            await engine.update_weights(WeightUpdate(engine.loaded_version + 1, new.path))
            after = await complete(engine, ask("after", prompt))
            await staying
            return before, after

    before, after = within(scenario)
    assert_close(before.logprobs, old.logprobs(prompt, before.token_ids))
    assert_close(after.logprobs, new.logprobs(prompt, after.token_ids))
