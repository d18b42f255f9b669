"""Make the HTTP application of a server: it answers whoever shows its key, and errors are a short JSON with a 4xx."""

import hmac
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from arl.engine.http import wire
from arl.errors import EngineError, short_message

SHUTDOWN_SECONDS = 1.0  # that handlers have at the end
MAX_CHARACTERS = 1800  # of an error

Body = TypeVar("Body")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_runner(routes: Iterable[web.RouteDef], key: str) -> web.AppRunner:
    """Return what serves `routes`, whose handlers raise an EngineError or a DecodeError for bad input.

    Args:
        key: which every request must show as a bearer token
    """
    token = f"Bearer {key}".encode()

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        shown = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if not hmac.compare_digest(shown, token):
            return error_answer(401, "this server needs its run key: Authorization: Bearer <key>")
        try:
            return await handler(request)
        except (EngineError, msgspec.DecodeError) as error:
            return error_answer(400, str(error))
        except web.HTTPRequestEntityTooLarge:
            return error_answer(413, f"a body may have {wire.MOST_BYTES} bytes: send several")
        except web.HTTPException as error:  # there is no such path, or it takes another method
            return error_answer(error.status, error.reason)

    app = web.Application(middlewares=[guard], client_max_size=wire.MOST_BYTES)
    app.add_routes(routes)
    # A handler ends when its caller has gone.
    return web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_SECONDS)


async def read_body(request: web.Request, kind: type[Body]) -> Body:
    """Read and decode the body; one that is missing counts as {}.

    Raises:
        msgspec.DecodeError: it is not of this kind.
    """
    return msgspec.json.decode(await request.read() or b"{}", type=kind)


def json_answer(value: Any) -> web.Response:
    """Answer with `value` as JSON."""
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def error_answer(status: int, reason: str) -> web.Response:
    """Answer with an error as JSON, which names what is wrong in a few lines."""
    message = short_message(reason)[:MAX_CHARACTERS]
    body = msgspec.json.encode({"error": {"message": message, "code": status}})
    return web.Response(status=status, body=body, content_type="application/json")
