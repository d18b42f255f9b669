"""Serve OpenAI's API to the agent of one episode, at an address of its own.

    agent ─► http://HOST:PORT/<secret>/v1/chat/completions ─► EpisodeEndpoint ─► Conversation ─► Session

A request that cannot be served gets a 4xx, and its episode goes on.
"""

import contextlib
import functools
import resource
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from arl.endpoint.openai_answers import Json, stream_events
from arl.endpoint.openai_requests import RefusedRequest, SamplingRequest
from arl.launch.network import LOOPBACK, free_listener

MAX_BYTES = 1 << 26  # of a request's body
SHUTDOWN_SECONDS = 1.0  # that handlers have at the end
SERVED = "POST chat/completions and completions"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Respond = Callable[[bytes], Awaitable[tuple[SamplingRequest, Json]]]


@contextlib.asynccontextmanager
async def serve(chat: Respond, complete: Respond) -> AsyncIterator[str]:
    """Serve while the context is open, and yield the base URL.

    Args:
        chat, complete: return a request to /chat/completions or /completions, and its answer.
    """
    # A request of an agent in this process has two sockets, and most systems allow 1,024 unless they are asked.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    prefix = f"/{secrets.token_hex(24)}/v1"
    app = web.Application(middlewares=[_answer_errors], client_max_size=MAX_BYTES)
    app.add_routes(
        [
            web.post(f"{prefix}/chat/completions", functools.partial(_generate, chat)),
            web.post(f"{prefix}/completions", functools.partial(_generate, complete)),
        ]
    )
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        listener = free_listener(LOOPBACK)
        await web.SockSite(runner, listener).start()
        yield f"http://{LOOPBACK}:{listener.getsockname()[1]}{prefix}"
    finally:
        await runner.cleanup()


async def _generate(respond: Respond, request: web.Request) -> web.StreamResponse:
    """Answer whole, or as a stream."""
    asked, answer = await respond(await request.read())
    if not asked.stream:
        return _json(answer)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in stream_events(answer, asked.wants_usage):
        await response.write(event)
    return response


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer what is refused in OpenAI's form."""
    try:
        return await handler(request)
    except RefusedRequest as error:
        refused = error
    except web.HTTPException as error:  # no such path, or a body beyond all bounds
        refused = RefusedRequest(f"{request.method} {request.path}: {error.reason}; served are {SERVED}", error.status)
    return _json(refused.body(), refused.status)


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json", status=status)
