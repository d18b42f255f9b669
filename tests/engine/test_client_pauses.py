"""Requests that a pause interrupts go on after it, and nothing reaches a server in the pause."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from arl.types import WeightUpdate
from tests.engine.conftest import ask, complete, within
from tests.engine.scripted_server import DONE, SGLANG, event, refuse, streamed, talking_to


def test_a_request_aborted_in_the_servers_line_repeats_no_token() -> None:
    """SGLang sends the last token once more, with the logprobs of all that was said."""

    async def scenario() -> tuple[int, ...]:
        asked, aborted = asyncio.Event(), asyncio.Event()

        async def write(_: dict[str, Any], response: web.StreamResponse) -> None:
            if asked.is_set():
                await response.write(streamed({**SGLANG[2], "output_ids": [7], "completion_tokens": 1}) + DONE)
                return
            await response.write(streamed(SGLANG[0]))
            asked.set()
            await aborted.wait()
            logprobs = [[-0.5, i, None] for i in (1, 2)]
            end = {"output_token_logprobs": logprobs, "finish_reason": {"type": "abort"}}
            await response.write(streamed({"output_ids": [2], "completion_tokens": 2}, **end) + DONE)

        async with talking_to(write, aborted) as (engine, _):
            call = asyncio.create_task(complete(engine, ask("retracted", tokens=3)))
            await asked.wait()
            await engine.pause()
            await engine.resume()
            return (await call).token_ids

    assert within(scenario) == (1, 2, 7)


RELEASE = "/release_memory_occupation"
RESUME = "/resume_memory_occupation"
PAUSE = ["/flush_cache", RELEASE]


@pytest.mark.parametrize("loads", [True, False])
def test_memory_is_released_when_idle_and_resumed_in_the_order_of_its_use(loads: bool) -> None:
    """Weights that nobody replaces are loaded again: they come back without content. SGLang dies of any other order."""

    async def scenario() -> list[Any]:
        async with talking_to(answer=refuse, releases_memory=True) as (engine, seen):
            await engine.pause()
            await engine.pause()
            if loads:
                await engine.update_weights(WeightUpdate(1, "weights"))
                assert seen == [*PAUSE, RESUME, "/update_weights_from_disk"]
                await engine.pause()
            await engine.resume()
            await engine.resume()
            await engine.update_weights(WeightUpdate(2, "weights"))
            return seen

    load = "/update_weights_from_disk"
    assert within(scenario) == [*PAUSE, RESUME, load, RESUME, "/flush_cache", load]


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

        async with talking_to(write, aborted) as (engine, seen):
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
