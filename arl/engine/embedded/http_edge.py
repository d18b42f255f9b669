"""Read HTTP requests of anybody, and answer those that are wrong with a 4xx and a short JSON error.

    connection ─► headers: who may ask ─► route ─► body: its size, its time, its type ─► a handler ─► its answer

What a request holds decides how much memory and time it takes, so all of it is bounded before it is decoded. So is the
number of connections that have not shown the key (door).
"""

import asyncio
import functools
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn, TypeVar

import msgspec
from aiohttp import web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web import BaseRequest, Response, StreamResponse

from arl.engine.embedded.access import WITHOUT_KEY, Access, HttpRefusal, RequestRefused
from arl.engine.embedded.body_room import BodyRoom
from arl.engine.embedded.door import Door
from arl.errors import EngineError, short_message

IDLE_SECONDS = 3600.0  # after which a connection that has shown the key, and is not used, is closed
LINGER_SECONDS = 2.0  # in which a client that is still sending may read why it was refused
RECEIVED_BYTES = 1 << 14  # at once: as many chunks of a byte each keep others waiting while they are parsed
SHUTDOWN_SECONDS = 1.0  # that handlers have at the end
MOST_CHARACTERS = 1800  # of an error, which JSON may double

Body = TypeVar("Body")
Handler = Callable[[BaseRequest], Awaitable[StreamResponse]]
Routes = Mapping[str, tuple[str, Handler]]  # path -> method, handler


class HttpEdge(web.Server):
    """Accept connections, and hand the requests that may be answered to their handlers.

    Args:
        routes: whose handlers raise an EngineError, a RequestRefused or a DecodeError for bad input
        access: who may ask
    """

    def __init__(self, routes: Routes, access: Access) -> None:
        super().__init__(self._answer, handler_cancellation=True)
        self._routes = routes
        self._access = access
        self.room = BodyRoom()

    def _make_request(self, message: RawRequestMessage, *rest: Any) -> BaseRequest:
        """Make a request of a head. aiohttp would raise on a URL whose host is no name, and answer nothing any more."""
        try:
            message.url.host  # noqa: B018
        except ValueError:
            message = message._replace(url=message.url.build(path="/"), path="/")  # a path that nobody serves
        return super()._make_request(message, *rest)

    async def listen(self, listener: socket.socket, tls: ssl.SSLContext | None) -> NoReturn:
        """Serve connections until cancelled. Those that have shown the key stay open until `close`.

        Args:
            listener: listens already; it is closed at the end
            tls: shows a certificate; None: serve without TLS
        """
        with listener:
            listener.setblocking(False)
            await Door(listener, functools.partial(self._welcome, tls)).accept()

    async def close(self) -> None:
        """Close every connection. Handlers under way have a second to answer."""
        self.pre_shutdown()
        await self.shutdown(SHUTDOWN_SECONDS)

    async def _welcome(self, tls: ssl.SSLContext | None, accepted: socket.socket) -> None:
        """Speak with who has connected. Return when it has shown the key, or is gone.

        Raises:
            OSError: the handshake fails.
        """
        connection = _Connection(self)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, accepted, ssl=tls)
            await connection.decided.wait()
        finally:
            if not connection.has_shown_key:
                connection.abort()

    async def _answer(self, request: BaseRequest) -> StreamResponse:
        refusal = self._access.refusal(request.headers)
        if refusal == WITHOUT_KEY:
            answer = error_answer(*refusal)
            answer.force_close()
            return answer
        assert isinstance(request.protocol, _Connection)
        request.protocol.let_in()
        refusal = refusal or _refusal_of_content(request)
        if refusal is not None:
            return error_answer(*refusal)
        try:
            handler = self._route(request)
            await _continue_if_asked(request)
            return await handler(request)
        except RequestRefused as error:
            return error_answer(*error.refusal)
        except (EngineError, msgspec.DecodeError, UnicodeDecodeError) as error:
            return error_answer(400, str(error))
        except ConnectionError:  # the caller has gone, and whatever is answered is dropped
            return Response()

    def _route(self, request: BaseRequest) -> Handler:
        found = self._routes.get(request.path)
        if found is None:
            raise RequestRefused(404, "there is no such path; see https://docs.sglang.io for the protocol")
        method, handler = found
        if request.method != method:
            raise RequestRefused(405, f"this path takes {method}")
        return handler


class _Connection(web.RequestHandler):
    """Serve one connection. What is no HTTP gets a JSON error, and no traceback in the log."""

    def __init__(self, edge: HttpEdge) -> None:
        # A compressed body is refused by its header, and not inflated: a small one may hold gigabytes.
        super().__init__(
            edge,
            loop=asyncio.get_running_loop(),
            auto_decompress=False,
            keepalive_timeout=IDLE_SECONDS,
            lingering_time=LINGER_SECONDS,
        )
        self.decided = asyncio.Event()  # it has shown the key, or is gone
        self.has_shown_key = False
        self.room = edge.room
        self._made: asyncio.Transport | None = None  # also after aiohttp has begun to close it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._made = transport
        transport.max_size = RECEIVED_BYTES  # type: ignore[attr-defined]
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self.decided.set()

    def let_in(self) -> None:
        """Keep the connection, because it has shown the key."""
        self.has_shown_key = True
        self.decided.set()

    def abort(self) -> None:
        """Close the connection at once: a stranger could let us wait for the answer to a farewell of TLS."""
        if self._made is not None:
            self._made.abort()

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> StreamResponse:
        if isinstance(exc, HttpProcessingError):
            answer = error_answer(400, f"this is not HTTP as it should be: {exc.message}")
            answer.force_close()
            return answer
        return super().handle_error(request, status, exc, message)  # a bug of ours, which the log shows


async def _continue_if_asked(request: BaseRequest) -> None:
    """Ask for the body of a client that waits to be asked, as curl does with a large one."""
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer itself has not begun


def _refusal_of_content(request: BaseRequest) -> HttpRefusal | None:
    """Return why the headers of a body are wrong; None: they are right. A POST without a body needs none."""
    headers = request.headers
    if headers.get("Content-Encoding", "identity").lower() != "identity":
        return HttpRefusal(415, "send the body as it is: Content-Encoding is not understood")
    if "Transfer-Encoding" in headers:  # each chunk, of a byte perhaps, takes as long as a kilobyte
        return HttpRefusal(411, "send the body whole, with its Content-Length: Transfer-Encoding is not understood")
    has_type = "Content-Type" in headers
    if (request.can_read_body or has_type) and request.method == "POST" and not _is_json(request):
        return HttpRefusal(415, "the body must have Content-Type: application/json")
    return None


def _is_json(request: BaseRequest) -> bool:
    given = request.headers.getall("Content-Type", [])
    return len(given) == 1 and given[0].partition(";")[0].strip().lower() == "application/json"


async def read_body(request: BaseRequest, kind: type[Body]) -> Body:
    """Read and decode the body; one that is missing counts as {}.

    Raises:
        RequestRefused: it is too large or too slow, breaks off, or there is no room for it.
        msgspec.DecodeError: it is not of this kind.
    """
    assert isinstance(request.protocol, _Connection)
    async with request.protocol.room.receive(request.content, request.content_length or 0) as data:
        return msgspec.json.decode(data or b"{}", type=kind)


def json_answer(value: Any) -> Response:
    """Answer with `value` as JSON."""
    return Response(body=msgspec.json.encode(value), content_type="application/json")


def error_answer(status: int, reason: str) -> Response:
    """Answer with an error as JSON, which names what is wrong in a few lines."""
    message = short_message(reason)[:MOST_CHARACTERS]
    body = msgspec.json.encode({"error": {"message": message, "code": status}})
    return Response(status=status, body=body, content_type="application/json")
