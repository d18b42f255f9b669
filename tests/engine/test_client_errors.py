"""An answer that cannot be read, or never comes, is an error that names server and request."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from arl.errors import DeadlineError, EngineError
from arl.types import WeightUpdate
from tests.engine.conftest import ask, complete, within
from tests.engine.scripted_server import DONE, event, refuse, talking_to


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"<html>hello</html>\n\n", "no server-sent event"),
        (b'data: {"error": {"message": "out of memory"}}\n\n', "out of memory"),
        (event([1, 2])[:40], "ended early"),
        (event([1, 2]) + event([1, 2, 3], total=3), "do not add up"),
        (event([1], "abort"), "without being asked"),
        (event([1]).replace(b'"1"', b'"2"'), "version 2 is said to have sampled a token, and 1 is"),
    ],
)
def test_garbage_is_an_error_that_names_server_and_request(answer: bytes, message: str) -> None:
    async def write(_: dict[str, Any], response: web.StreamResponse) -> None:
        await response.write(answer)

    async def scenario() -> None:
        async with talking_to(write) as (engine, _):
            with pytest.raises(EngineError, match=f"{engine.url}: request odd: .*{message}"):
                await complete(engine, ask("odd"))

    within(scenario)


def test_silence_ends_at_its_deadline_and_says_who_waits() -> None:
    async def silent(_: dict[str, Any], __: web.StreamResponse) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        async with talking_to(silent, generate_seconds=0.2) as (engine, _):
            with pytest.raises(DeadlineError, match=f"{engine.url}/generate, request quiet"):
                await complete(engine, ask("quiet"))

    within(scenario)


def test_no_weights_are_loaded_over_a_cache_that_could_not_be_flushed() -> None:
    """Prefixes of the old weights would pass for those of the new ones."""

    async def scenario() -> list[Any]:
        async with talking_to(refuse, broken="/flush_cache") as (engine, seen):
            with pytest.raises(EngineError, match=r"/flush_cache answered 500"):
                await engine.update_weights(WeightUpdate(1, "weights"))
            return seen

    assert within(scenario) == ["/flush_cache"]


def test_a_request_that_ends_short_of_its_budget_is_an_error() -> None:
    async def write(_: dict[str, Any], response: web.StreamResponse) -> None:
        await response.write(event([1, 2], "length") + DONE)

    async def scenario() -> None:
        async with talking_to(write) as (engine, _):
            with pytest.raises(EngineError, match="3 tokens short of its budget: its context or its cache"):
                await complete(engine, ask("short", tokens=5))

    within(scenario)
