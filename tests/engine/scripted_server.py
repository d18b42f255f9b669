"""Serve SGLang's protocol with answers that a test writes byte by byte, to the real client."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from arl.engine.http.engine_client import HttpEngine
from tests.engine.conftest import connect

Answer = Callable[[dict[str, Any], web.StreamResponse], Awaitable[None]]


@asynccontextmanager
async def talking_to(
    answer: Answer, aborted: asyncio.Event | None = None, version: int = 1, broken: str = "", **options: Any
) -> AsyncIterator[tuple[HttpEngine, list[Any]]]:
    """Yield a client of a server that accepts every command but `broken` and streams what `answer` writes."""
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
        model = {"model_path": "m", "weight_version": str(version)}
        return web.json_response(model)

    app = web.Application()
    app.router.add_post("/generate", generate)
    app.router.add_get("/model_info", info)
    app.router.add_post("/{_}", command)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        async with connect(f"http://127.0.0.1:{runner.addresses[0][1]}", **options) as engine:
            yield engine, seen
    finally:
        await runner.cleanup()


def event(ids: list[int], finish: str | None = None, total: int | None = None) -> bytes:
    """Return an increment as SGLang sends it: the versions are spans of all output so far."""
    total = len(ids) if total is None else total
    part = {"output_ids": ids, "completion_tokens": total, "weight_versions": [span("1", 0, total)]}
    return streamed(part, finish_reason=finish and {"type": finish})


DONE = b"data: [DONE]\n\n"


def span(version: str, start: int, end: int) -> dict[str, Any]:
    return {"version": version, "start": start, "end": end}


def streamed(part: dict[str, Any], **more: Any) -> bytes:
    ids = part["output_ids"]
    meta = {"id": "x", "finish_reason": None, "output_token_logprobs": [[-0.5, i, None] for i in ids]} | part | more
    return b"data: " + json.dumps({"output_ids": ids, "meta_info": meta}).encode() + b"\n\n"


async def refuse(_: dict[str, Any], __: web.StreamResponse) -> None:
    raise AssertionError("nothing was asked")
