"""Send commands to one server, and read its event streams. Torch-free."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from arl.clock import deadline
from arl.errors import EngineError, EngineLost, short_message
from arl.launch.network import client_context, is_loopback

KEEPALIVE_SECONDS = 2.0  # below the server's (SGLang: 5), so that it never closes a connection about to be used
PREFIX = b"data: "  # of an event
SEPARATOR = b"\n\n"  # between events


class Http:
    """Talk to one server. Construct it inside a running loop, and `close` it.

    Args:
        url: like http://127.0.0.1:30000
        key: sent as a bearer token
        seconds: deadline of every command
        certificate: file of the only one that the server may show; None: the server is on loopback, and has none

    Raises:
        EngineError: the key would cross a network in the clear.
    """

    def __init__(self, url: str, key: str, seconds: float, certificate: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._seconds = seconds
        place = urlsplit(self.url)
        is_encrypted = place.scheme == "https"
        if is_encrypted and certificate is None:
            raise EngineError(f"{url}: its certificate is not known, so anybody may answer there; give the run's own")
        if not is_encrypted and not is_loopback(place.hostname or ""):
            raise EngineError(
                f"{url}: the run's key would cross the network in the clear; a server beyond loopback must serve TLS "
                "with the certificate in the directory ARL_TLS, and print its address with https"
            )
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                keepalive_timeout=KEEPALIVE_SECONDS,
                ssl=client_context(certificate) if certificate and is_encrypted else True,
            ),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
            timeout=aiohttp.ClientTimeout(total=None),  # arl's deadlines instead, whose messages say who waits
        )

    async def close(self) -> None:
        await self._session.close()

    async def command(self, path: str, body: Any = None, seconds: float | None = None) -> bytes:
        """POST `body`, or GET without one, and expect 200.

        Args:
            seconds: deadline, if it has one of its own.

        Raises:
            EngineError: another status, with what the server said.
            EngineLost: no connection, or it broke, or was closed.
            DeadlineError: no answer in time.
        """
        status, answer = await self.ask(path, body, seconds)
        if status != 200:
            raise EngineError(f"{self.url}{path} answered {status}: {_quote(answer)}")
        return answer

    async def ask(self, path: str, body: Any = None, seconds: float | None = None) -> tuple[int, bytes]:
        """Do what `command` does, but return any status, with the body."""
        async with (
            deadline(seconds or self._seconds, "engine client", f"{self.url}{path}"),
            self._request(path, body) as response,
        ):
            return response.status, await response.read()

    @contextlib.asynccontextmanager
    async def stream(self, path: str, body: Any) -> AsyncIterator[AsyncIterator[list[bytes]]]:
        """POST `body`, and yield the data of the events that answer it, as they arrive together.

        The caller has the deadline.

        Raises:
            EngineError: refused, or not server-sent events.
            EngineLost: no connection, or it broke, or was closed.
        """
        async with self._request(path, body) as response:
            if response.status != 200:
                raise EngineError(f"{path} answered {response.status}: {_quote(await response.read())}")
            yield _events(response.content)

    @contextlib.asynccontextmanager
    async def _request(self, path: str, body: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send one request, and raise aiohttp's errors as those of the seam."""
        if self._session.closed:  # a task that saw the server end has closed it, while this one still used it
            raise EngineLost(f"{self.url}{path}: the client was closed")
        method = "GET" if body is None else "POST"
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self._session.request(method, self.url + path, data=data, allow_redirects=False) as response:
                yield response
        except aiohttp.ClientConnectorCertificateError as error:
            raise EngineError(
                f"{self.url}{path}: who answers shows another certificate than the one of this run: {error}"
            ) from error
        except aiohttp.ClientError as error:
            is_loss = isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError)
            kind = EngineLost if is_loss else EngineError
            raise kind(f"{self.url}{path}: {type(error).__name__}: {short_message(str(error))}") from error


def _quote(answer: bytes) -> str:
    """Return the beginning of an answer, as an error shows it."""
    return short_message(answer[:500].decode(errors="replace"))


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[list[bytes]]:
    """Yield the data of the events in each piece from the network, which may hold many of them, or a part of one."""
    rest = b""
    async for piece in content.iter_any():
        *events, rest = (rest + piece).split(SEPARATOR)
        for event in events:
            if not event.startswith(PREFIX):
                raise EngineError(f"this is no server-sent event: {event[:200]!r}")
        yield [event[len(PREFIX) :] for event in events]
