"""Check the client of a server against scripted answers: versions of tokens, broken answers, pauses and memory."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from arl.errors import DeadlineError, EngineError
from arl.types import Completion, FinishReason, WeightUpdate
from tests.engine.conftest import ask, complete, within
from tests.engine.scripted_server import DONE, event, refuse, span, streamed, talking_to


@pytest.mark.parametrize(("kv_policy", "flush"), [("keep", []), ("recompute", ["/flush_cache"])])
def test_a_call_stays_open_over_a_swap_and_each_increment_says_who_sampled_its_tokens(
    kv_policy: str, flush: list[str]
) -> None:
    """The increment after the swap holds a token that the old weights had sampled before it."""
    heard = []
    parts: list[dict[str, Any]] = [
        {"output_ids": [1, 2], "completion_tokens": 2, "weight_versions": [span("0", 0, 2)]},
        {"output_ids": [3, 4], "completion_tokens": 4, "weight_versions": [span("0", 0, 3), span("1", 3, 4)]},
        {"output_ids": [5], "completion_tokens": 5, "weight_versions": [span("0", 0, 3), span("1", 3, 5)]},
    ]

    async def scenario() -> None:
        swapped = asyncio.Event()

        async def write(_: dict[str, Any], response: web.StreamResponse) -> None:
            await response.write(streamed(parts[0]))
            await swapped.wait()
            await response.write(streamed(parts[1]) + streamed(parts[2], finish_reason={"type": "length"}) + DONE)

        async with talking_to(write, version=0, kv_policy=kv_policy) as (engine, seen):
            async for increment in engine.generate(ask("kept", tokens=5)):
                heard.append((increment.token_ids, increment.policy_versions))
                if not swapped.is_set():
                    report = await engine.update_weights(WeightUpdate(1, "weights"))
                    assert report.recomputed_tokens == (5 if kv_policy == "recompute" else 0)
                    swapped.set()
            keyed = seen[0].get("extra_key") == ["0"]
            assert keyed == (kv_policy == "keep"), "a prefix cache that is not flushed is keyed by version"
            pause = ["/pause_generation", *flush]
            assert seen[1:] == [*pause, "/update_weights_from_disk", "/continue_generation"]

    within(scenario)
    assert heard == [((1, 2), (0, 0)), ((3, 4), (0, 1)), ((5,), (1,))]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"<html>hello</html>\n\n", "no server-sent event"),
        (b'data: {"error": {"message": "out of memory"}}\n\n', "out of memory"),
        (event([1, 2])[:40], "ended early"),
        (event([1, 2]) + event([1, 2, 3], total=3), "do not add up"),
        (event([1], "abort"), "without being asked"),
        (event([1]).replace(b'"1"', b'"2"'), "version 2 is said to have sampled a token, and 1 is"),
        (event([1, 2], "length") + DONE, "18 tokens short of its budget: its context or its cache"),
        (streamed({"output_ids": [1], "completion_tokens": 1}), "does not say which version sampled 1 of 1 tokens"),
    ],
)
def test_a_wrong_answer_is_an_error_that_names_server_and_request(answer: bytes, message: str) -> None:
    async def write(_: dict[str, Any], response: web.StreamResponse) -> None:
        await response.write(answer)

    async def scenario() -> None:
        async with talking_to(write) as (engine, _):
            with pytest.raises(EngineError, match=f"{engine.url}: request odd: .*{message}"):
                await complete(engine, ask("odd"))

    within(scenario)


def test_no_weights_are_loaded_over_a_cache_that_could_not_be_flushed() -> None:
    """Prefixes of the old weights would pass for those of the new ones."""

    async def scenario() -> list[Any]:
        async with talking_to(refuse, broken="/flush_cache") as (engine, seen):
            with pytest.raises(EngineError, match=r"/flush_cache answered 500"):
                await engine.update_weights(WeightUpdate(1, "weights"))
            return seen

    assert within(scenario) == ["/pause_generation", "/flush_cache"]


def test_silence_ends_at_its_deadline_and_says_who_waits() -> None:
    async def silent(_: dict[str, Any], __: web.StreamResponse) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        async with talking_to(silent, generate_seconds=0.2) as (engine, _):
            with pytest.raises(DeadlineError, match=f"{engine.url}/generate, request quiet"):
                await complete(engine, ask("quiet"))

    within(scenario)


def test_a_request_aborted_in_the_servers_line_repeats_no_token() -> None:
    """SGLang sends the last token once more, with the logprobs of all that was said."""

    async def scenario() -> tuple[int, ...]:
        asked, aborted = asyncio.Event(), asyncio.Event()

        async def write(_: dict[str, Any], response: web.StreamResponse) -> None:
            if asked.is_set():
                await response.write(event([7], "length") + DONE)
                return
            await response.write(event([1, 2]))
            asked.set()
            await aborted.wait()
            logprobs = [[-0.5, i, None] for i in (1, 2)]
            end = {"output_token_logprobs": logprobs, "finish_reason": {"type": "abort"}}
            await response.write(streamed({"output_ids": [2], "completion_tokens": 2}, **end) + DONE)

        async with talking_to(write, aborted, releases_memory=True) as (engine, _):
            call = asyncio.create_task(complete(engine, ask("retracted", tokens=3)))
            await asked.wait()
            await engine.pause()
            await engine.resume()
            return (await call).token_ids

    assert within(scenario) == (1, 2, 7)


@pytest.mark.parametrize(
    ("late", "budget", "finish"), [([3, 4], 5, "length"), ([3, 9], 5, "stop"), ([3, 4], 4, "length")]
)
def test_tokens_that_a_server_samples_behind_an_abort_are_kept_and_counted(
    late: list[int], budget: int, finish: FinishReason
) -> None:
    """With overlapped scheduling SGLang samples two more, and says abort even if they end the request."""

    def said(ids: list[int], total: int, end: str | None = None, version: str = "1") -> bytes:
        logprobs = [[-i / 10, i, None] for i in ids]
        part = {"output_ids": ids, "completion_tokens": total, "output_token_logprobs": logprobs}
        return streamed(part, weight_versions=[span(version, 0, total)], finish_reason=end and {"type": end})

    async def scenario() -> tuple[Completion, list[dict[str, Any]]]:
        asked, aborted = asyncio.Event(), asyncio.Event()

        async def write(_: dict[str, Any], response: web.StreamResponse) -> None:
            if asked.is_set():
                await response.write(said([7], 1, "length", "2") + DONE)
                return
            await response.write(said([1, 2], 2))
            asked.set()
            await aborted.wait()
            await response.write(said(late[:1], 3) + said(late[1:], 4, "abort") + DONE)

        async with talking_to(write, aborted, releases_memory=True) as (engine, seen):
            request = ask("overlapped", (5, 6), budget, stop_token_ids=(9,))
            call = asyncio.create_task(complete(engine, request))
            await asked.wait()
            await engine.pause()
            await engine.update_weights(WeightUpdate(2, "weights"))
            await engine.resume()
            return await call, [body for body in seen if isinstance(body, dict)]

    answer, bodies = within(scenario)
    rest = [7] if (late, budget) == ([3, 4], 5) else []
    ids = (1, 2, *late, *rest)
    assert answer == Completion(ids, tuple(-i / 10 for i in ids), (1,) * 4 + (2,) * len(rest), finish)
    assert len(bodies) == 1 + len(rest)
    for body in bodies[1:]:
        assert body["input_ids"] == [[5, 6, 1, 2, 3, 4]]
        assert body["sampling_params"][0]["max_new_tokens"] == 1


@pytest.mark.parametrize("loads", [True, False])
def test_memory_is_released_when_idle_and_resumed_in_the_order_of_its_use(loads: bool) -> None:
    """Weights that nobody replaces are loaded again: they come back without content. SGLang dies of any other order."""
    pause = ["/flush_cache", "/release_memory_occupation"]
    resume = "/resume_memory_occupation"
    load = "/update_weights_from_disk"

    async def scenario() -> list[Any]:
        async with talking_to(answer=refuse, releases_memory=True) as (engine, seen):
            await engine.pause()
            await engine.pause()
            if loads:
                await engine.update_weights(WeightUpdate(1, "weights"))
                assert seen == [*pause, resume, load]
            await engine.resume()
            await engine.update_weights(WeightUpdate(2, "weights"))
            return seen

    assert within(scenario) == [*pause, resume, load, resume, "/flush_cache", load]


def test_nothing_reaches_a_server_that_a_pause_has_emptied() -> None:
    """It does not matter how far a call had come when the pause began. SGLang dies if it is not idle then."""

    async def scenario(turns: int) -> None:
        open_there, aborted = 0, asyncio.Event()

        async def write(_: dict[str, Any], response: web.StreamResponse) -> None:
            nonlocal open_there
            open_there += 1
            await aborted.wait()
            open_there -= 1
            await response.write(event([], "abort") + DONE)

        async with talking_to(write, aborted, releases_memory=True) as (engine, seen):
            call = asyncio.create_task(complete(engine, ask("late")))
            for _ in range(turns):
                await asyncio.sleep(0)
            await engine.pause()
            asked = len(seen)
            await engine._http.command("/later", {})
            assert open_there == 0
            assert seen[asked:] == ["/later"]
            call.cancel()
            await asyncio.wait([call])

    for turns in range(12):
        within(lambda turns=turns: scenario(turns))  # type: ignore[misc]
