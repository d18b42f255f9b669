"""The client sends what it is asked, and reads from the answers which version sampled each token."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from arl.errors import EngineError
from arl.types import WeightUpdate
from tests.engine.conftest import ask, within
from tests.engine.scripted_server import DONE, SGLANG, streamed, talking_to


def swapped_in_place(spans: dict[str, Any]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(ids, versions) of the increments of a call that is open over a swap under keep; `spans` are in the last one."""

    async def scenario() -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        swapped, heard = asyncio.Event(), []

        async def write(_: dict[str, Any], response: web.StreamResponse) -> None:
            await response.write(streamed(SGLANG[0]))
            await swapped.wait()
            await response.write(streamed(SGLANG[1]) + streamed(SGLANG[2], **spans) + DONE)

        async with talking_to(write, version=0, kv_policy="keep") as (engine, seen):
            async for increment in engine.generate(ask("kept", tokens=5)):
                heard.append((increment.token_ids, increment.policy_versions))
                if not swapped.is_set():
                    await engine.update_weights(WeightUpdate(1, "weights"))
                    swapped.set()
            assert seen[0]["extra_key"] == ["0"], "the prefix cache is keyed by version"
            assert seen[1:] == ["/pause_generation", "/update_weights_from_disk", "/continue_generation"]
        return heard

    return within(scenario)


def test_under_keep_tokens_after_a_swap_wait_for_the_spans_that_tell_who_sampled_them() -> None:
    """The increment after the swap holds a token that the old weights had sampled before it."""
    spans = [{"version": "0", "start": 0, "end": 3}, {"version": "1", "start": 3, "end": 5}]
    assert swapped_in_place({"weight_versions": spans}) == [((1, 2), (0, 0)), ((3, 4, 5), (0, 1, 1))]


def test_keep_is_refused_where_the_server_does_not_tell_which_version_sampled_a_token() -> None:
    with pytest.raises(EngineError, match="keep needs"):
        swapped_in_place({})
