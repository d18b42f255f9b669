"""Run the client against servers that misbehave, or that behave as SGLang does and ours does not."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Any

import pytest
from aiohttp import web

from arl.engine.http.engine_client import HttpEngine
from arl.errors import DeadlineError, EngineError, EngineLost
from arl.types import Completion, WeightUpdate
from tests.engine.conftest import ask, complete, connect, within

Answer = Callable[[dict[str, Any], web.StreamResponse], Awaitable[None]]


@asynccontextmanager
async def talking_to(
    answer: Answer, aborted: asyncio.Event | None = None, broken: str = "", version: int = 1, **options: Any
) -> AsyncIterator[tuple[HttpEngine, list[Any]]]:
    """Yield a client of a server that accepts every command but the `broken` one and streams what `answer` writes."""
    seen: list[Any] = []

    async def generate(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        seen.append(body)
        response = web.StreamResponse()
        await response.prepare(request)
        await answer(body, response)
        return response

    async def command(request: web.Request) -> web.Response:
        seen.append(request.path)
        if aborted is not None and request.path == "/abort_request":
            aborted.set()
        return web.json_response({}, status=500 if request.path == broken else 200)

    async def info(_: web.Request) -> web.Response:
        return web.json_response(
            {"model_path": "m", "weight_version": str(version), "vocab_size": 16, "context_length": 64}
        )

    app = web.Application()
    app.add_routes(
        [
            web.post("/generate", generate),
            web.get("/model_info", info),
            web.get("/v1/loads", command),
            web.post("/{_}", command),
        ]
    )
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        async with connect(f"http://127.0.0.1:{runner.addresses[0][1]}", **options) as engine:
            yield engine, seen
    finally:
        await runner.cleanup()


def event(ids: list[int], finish: str | None = None, total: int | None = None, start: int = 0) -> bytes:
    """Return an increment as SGLang sends it: the versions are spans of all output so far."""
    total = len(ids) if total is None else total
    meta = {
        "id": "x",
        "completion_tokens": total,
        "output_token_logprobs": [[-0.5, i, None] for i in ids],
        "weight_versions": [
            {"version": "0", "start": 0, "end": start},
            {"version": "1", "start": start, "end": total},
        ],
        "finish_reason": finish and {"type": finish},
    }
    return b"data: " + json.dumps({"output_ids": ids, "meta_info": meta}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"<html>hello</html>\n\n", "no server-sent event"),
        (b'data: {"output_ids": "what"}\n\n', "Expected"),
        (b'data: {"error": {"message": "out of memory"}}\n\n', "out of memory"),
        (event([1, 2]), "ended early"),
        (event([1, 2])[:40], "ended early"),
        (event([1, 2]) + event([1, 2, 3], total=3), "do not add up"),
        (event([1], "abort"), "without being asked"),
        (event([1]).replace(b"-0.5", b"null"), "Expected"),
        (event([1]).replace(b'"1"', b'"default"'), "default"),
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


IMPOSSIBLE = {
    "future version": (event([1]).replace(b'"1"', b'"2"'), "version 2 is said to have sampled a token, and 1 is"),
    "version too large": (event([1]).replace(b'"1"', b'"2147483648"'), "must be an integer from 0"),
    "positive logprob": (event([1]).replace(b"-0.5", b"0.5"), "logprob 0.5 must be a finite number, at most 0"),
    "infinite logprob": (event([1]).replace(b"-0.5", b"-1e400"), "out of range"),
    "large id": (event([16]), "id 16 is outside the vocabulary"),
    "negative id": (event([-1]), "id -1 is outside the vocabulary"),
    "too many tokens": (event([1] * 21), "21 tokens came, and 20 were left"),
    "another's index": (
        event([1]).replace(b'"meta_info"', b'"index": 5, "meta_info"'),
        "of request 5, which has ended",
    ),
    "no progress": (event([]) * 20_000, "increments brought no token"),
    "endless event": (b"data: [" + b"1," * (5 << 20), "an event is longer than"),
    "deep nesting": (b'data: {"a":' + b"[" * 100_000 + b"\n\n", "nested too deeply|truncated"),
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_an_answer_that_cannot_be_is_an_error_that_names_server_and_request(kind: str) -> None:
    answer, message = IMPOSSIBLE[kind]

    async def write(_: dict[str, Any], response: web.StreamResponse) -> None:
        with contextlib.suppress(ConnectionError):  # the client has seen enough
            await response.write(answer)

    async def scenario() -> None:
        async with talking_to(write) as (engine, _):
            with pytest.raises(EngineError, match=f"{engine.url}: request odd: .*({message})") as raised:
                await complete(engine, ask("odd"))
            assert len(str(raised.value)) < 4000

    within(scenario)


def test_silence_ends_at_its_deadline_and_says_who_waits() -> None:
    async def silent(_: dict[str, Any], __: web.StreamResponse) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        async with talking_to(silent, generate_seconds=0.2) as (engine, _):
            with pytest.raises(DeadlineError, match=f"{engine.url}/generate, request quiet"):
                await complete(engine, ask("quiet"))

    within(scenario)


def test_calls_of_one_iteration_travel_in_one_post() -> None:
    async def write(body: dict[str, Any], response: web.StreamResponse) -> None:
        for index in range(len(body["rid"])):
            data = json.loads(event([1], "length")[6:]) | {"index": index}
            await response.write(b"data: " + json.dumps(data).encode() + b"\n\n")
        await response.write(DONE)

    async def scenario() -> None:
        async with talking_to(write) as (engine, seen):
            await asyncio.gather(*(complete(engine, ask(f"r{i}", tokens=1)) for i in range(8)))
            (body,) = seen
            assert len(body["input_ids"]) == 8
            assert body["sampling_params"][0]["ignore_eos"], "no stop token: the budget alone ends it"

    within(scenario)


def test_versions_are_read_from_spans_of_the_whole_output() -> None:
    async def write(_: dict[str, Any], response: web.StreamResponse) -> None:
        await response.write(event([1, 2], total=2, start=2) + event([3, 4], "length", total=4, start=3) + DONE)

    async def scenario() -> None:
        async with talking_to(write) as (engine, _):
            assert (await complete(engine, ask("spans", tokens=4))).policy_versions == (0, 0, 0, 1)

    within(scenario)


@pytest.mark.parametrize(
    ("said", "sampling", "finish"),
    [([1, 2, 3], {"tokens": 3}, "length"), ([1, 9], {"tokens": 5, "stop_token_ids": (9,)}, "stop")],
)
def test_a_request_that_was_over_when_the_pause_aborted_it_is_not_sent_again(
    said: list[int], sampling: dict[str, Any], finish: str
) -> None:
    assert within(lambda: _interrupted(said, sampling)) == (
        Completion(
            tuple(said),
            (-0.5,) * len(said),
            (1,) * len(said),
            finish,  # type: ignore[arg-type]
        ),
        1,
    )


def test_an_interrupted_request_is_sent_again_with_what_it_said_and_the_rest_of_its_budget() -> None:
    answer, posts = within(lambda: _interrupted([1, 2], {"tokens": 5}))
    assert answer.token_ids == (1, 2, 7, 7, 7)
    assert posts == 2


def test_calls_are_sent_again_in_order_of_arrival() -> None:
    """A pause hands back the calls that wait at once, and those that run only after their pass."""
    bodies: list[dict[str, Any]] = []

    async def scenario() -> None:
        asked, aborted = asyncio.Event(), asyncio.Event()

        async def write(body: dict[str, Any], response: web.StreamResponse) -> None:
            bodies.append(body)
            if len(bodies) == 1:
                asked.set()
                await aborted.wait()
            for index in (2, 0, 3, 1):
                data = json.loads(event([], "abort")[6:] if len(bodies) == 1 else event([7], "length")[6:])
                await response.write(b"data: " + json.dumps(data | {"index": index}).encode() + b"\n\n")
            await response.write(DONE)

        async with talking_to(write, aborted) as (engine, _):
            calls = [asyncio.create_task(complete(engine, ask(f"r{i}", (i,), 1))) for i in range(4)]
            await asked.wait()
            await engine.pause()
            await engine.resume()
            await asyncio.gather(*calls)

    within(scenario)
    assert [body["input_ids"] for body in bodies] == [[[0], [1], [2], [3]]] * 2


async def _interrupted(said: list[int], sampling: dict[str, Any]) -> tuple[Completion, int]:
    """Answer the first POST at the pause, with `said` and an abort, and the second in full, with 7s."""
    asked, aborted, bodies = asyncio.Event(), asyncio.Event(), []

    async def write(body: dict[str, Any], response: web.StreamResponse) -> None:
        bodies.append(body)
        if len(bodies) == 1:
            asked.set()
            await aborted.wait()
            await response.write(event(said, "abort") + DONE)
            return
        budget = body["sampling_params"][0]["max_new_tokens"]
        assert body["input_ids"] == [[1, 2, 3, *said]]
        await response.write(event([7] * budget, "length") + DONE)

    async with talking_to(write, aborted) as (engine, seen):
        call = asyncio.create_task(complete(engine, ask("cut", **sampling)))
        await asked.wait()
        await engine.pause()
        await engine.update_weights(WeightUpdate(1, "weights"))
        await engine.resume()
        answer = await call
        commands = [path for path, _ in groupby(path for path in seen if isinstance(path, str))]  # aborts are repeated
        assert commands == ["/abort_request", "/flush_cache", "/update_weights_from_disk"]
        return answer, len(bodies)


def test_the_controllers_side_never_imports_torch() -> None:
    modules = "arl.engine.base, arl.engine.http.engine_client, arl.engine.router"
    imports = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", imports], check=False, timeout=300).returncode == 0


SGLANG = [  # as SGLang streams: no spans before the last increment
    {"output_ids": [1, 2], "weight_version": "0", "completion_tokens": 2},
    {"output_ids": [3, 4], "weight_version": "1", "completion_tokens": 4},
    {"output_ids": [5], "weight_version": "1", "completion_tokens": 5, "finish_reason": {"type": "length"}},
]


def streamed(part: dict[str, Any], **more: Any) -> bytes:
    ids = part["output_ids"]
    meta = {"id": "x", "finish_reason": None, "output_token_logprobs": [[-0.5, i, None] for i in ids]} | part | more
    return b"data: " + json.dumps({"output_ids": ids, "meta_info": meta}).encode() + b"\n\n"


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
    with pytest.raises(EngineError, match="keep needs SGLang"):
        swapped_in_place({})


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


def test_a_report_that_cannot_be_read_is_an_error_that_quotes_it() -> None:
    async def scenario() -> None:
        async with talking_to(refuse) as (engine, _):
            with pytest.raises(EngineError, match=r"/v1/loads answered 200: .*missing required field.*\{\}"):
                await engine.report()

    within(scenario)


def test_checksums_that_cannot_be_read_are_an_error_that_quotes_them() -> None:
    async def scenario() -> None:
        async with talking_to(refuse) as (engine, _):
            with pytest.raises(EngineError, match=r"/weights_checker: .*missing required field.*\{\}"):
                await engine.update_weights(WeightUpdate(1, "weights", checksums={"a": "b"}))

    within(scenario)


def test_no_weights_are_loaded_over_a_cache_that_could_not_be_flushed() -> None:
    """Prefixes of the old weights would pass for those of the new ones."""

    async def scenario() -> list[Any]:
        async with talking_to(refuse, broken="/flush_cache") as (engine, seen):
            with pytest.raises(EngineError, match=r"/flush_cache answered 500"):
                await engine.update_weights(WeightUpdate(1, "weights"))
            return seen

    assert within(scenario) == ["/flush_cache"]


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


async def refuse(_: dict[str, Any], __: web.StreamResponse) -> None:
    raise AssertionError("nothing was asked")


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


def test_a_request_that_ends_short_of_its_budget_is_an_error() -> None:
    async def write(_: dict[str, Any], response: web.StreamResponse) -> None:
        await response.write(event([1, 2], "length") + DONE)

    async def scenario() -> None:
        async with talking_to(write) as (engine, _):
            with pytest.raises(EngineError, match="3 tokens short of its budget: its context or its cache"):
                await complete(engine, ask("short", tokens=5))

    within(scenario)


@pytest.mark.parametrize("kv_policy", ["recompute", "keep"])
def test_a_closed_client_tells_its_loss_to_whoever_was_in_the_middle_of_a_swap(kv_policy: str) -> None:
    """A supervisor sees its server dead and closes the client, while the router pauses it, and goes on with others."""

    async def nothing(_: dict[str, Any], response: web.StreamResponse) -> None: ...

    async def scenario() -> None:
        async with talking_to(nothing, kv_policy=kv_policy) as (engine, _):
            await engine.aclose()
            for asked in (engine.update_weights(WeightUpdate(1, "somewhere")), engine.report()):
                with pytest.raises(EngineLost, match="the client was closed"):
                    await asked

    within(scenario)


def test_a_server_that_serves_another_version_than_it_was_started_with_is_refused() -> None:
    async def answer(_: dict[str, Any], response: web.StreamResponse) -> None:
        await response.write(DONE)

    async def connected(version: int) -> None:
        async with (
            talking_to(answer, version=3) as (served, _),
            HttpEngine(served.url, generate_seconds=9.0, swap_seconds=9.0, version=version) as engine,
        ):
            assert engine.loaded_version == 3

    asyncio.run(connected(3))
    with pytest.raises(EngineError, match=r"/model_info: it serves version 3, and was started with 0"):
        asyncio.run(connected(0))
