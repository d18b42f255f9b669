"""Serve OpenAI's API to the agents of this process: one server, and one address for each episode.

    agent ─► http://HOST:PORT/episodes/<secret>/v1/chat/completions ─► EpisodeEndpoint ─► Conversation ─► Session

The server starts with the first open address, and ends with the last one. A request that cannot be served gets a 4xx,
and its episode goes on.
"""

import asyncio
import resource
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec
from aiohttp import web

from arl.endpoint.openai_answers import stream_events
from arl.endpoint.openai_requests import EPISODE_ENDED, MODEL, RefusedRequest
from arl.launch.network import LOOPBACK, free_listener

if TYPE_CHECKING:
    from arl.endpoint.episode_endpoint import EpisodeEndpoint

MAX_BYTES = 1 << 26  # of a request's body
SHUTDOWN_SECONDS = 1.0  # that handlers have at the end
BACKLOG = 1024  # connections that the kernel holds until they are accepted
PREFIX = "/episodes/{secret}/v1"
SERVED = "POST chat/completions and completions, GET models"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AgentServer:
    """Pass each request to the episode whose secret is in its path."""

    def __init__(self) -> None:
        self._episodes: dict[str, EpisodeEndpoint] = {}
        self._runner: web.AppRunner | None = None
        self._port = 0
        self._turn = asyncio.Lock()  # of whoever starts or ends the server

    async def add(self, episode: "EpisodeEndpoint") -> tuple[str, str]:
        """Open an address for an episode. Return its secret, and the base URL."""
        secret = secrets.token_hex(24)
        async with self._turn:
            if self._runner is None:
                self._runner = await self._start()
            self._episodes[secret] = episode
        return secret, f"http://{LOOPBACK}:{self._port}{PREFIX.format(secret=secret)}"

    async def remove(self, secret: str) -> None:
        """Close an address."""
        del self._episodes[secret]
        async with self._turn:
            if self._runner is not None and not self._episodes:
                runner, self._runner = self._runner, None
                await runner.cleanup()

    async def _start(self) -> web.AppRunner:
        # A request of an agent in this process has two sockets, and most systems allow 1,024 unless they are asked.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        app = web.Application(middlewares=[_answer_errors], client_max_size=MAX_BYTES)
        app.add_routes(
            [
                web.post(f"{PREFIX}/{{kind:chat/completions|completions}}", self._generate),
                web.get(f"{PREFIX}/models", self._list_models),
            ]
        )
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_SECONDS)
        await runner.setup()
        listener = free_listener(LOOPBACK)
        self._port = listener.getsockname()[1]
        await web.SockSite(runner, listener, backlog=BACKLOG).start()
        return runner

    def _episode(self, request: web.Request) -> "EpisodeEndpoint":
        episode = self._episodes.get(request.match_info["secret"])
        if episode is None:
            raise RefusedRequest("no episode has this address: it has ended, or the URL is wrong", 410, EPISODE_ENDED)
        return episode

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        """Answer whole, or as a stream."""
        episode = self._episode(request)
        respond = episode.chat if request.match_info["kind"] == "chat/completions" else episode.complete
        asked, answer = await respond(await request.read())
        if not asked.stream:
            return _json(answer)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in stream_events(answer, asked.wants_usage):
            await response.write(event)
        return response

    async def _list_models(self, request: web.Request) -> web.Response:
        self._episode(request)
        return _json({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "arl"}]})


_servers: "WeakKeyDictionary[asyncio.AbstractEventLoop, AgentServer]" = WeakKeyDictionary()


def agent_server() -> AgentServer:
    """Return the server of the running loop. It listens while an address is open."""
    return _servers.setdefault(asyncio.get_running_loop(), AgentServer())


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
