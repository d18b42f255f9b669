"""Send commands to one server, and read its event streams. Torch-free."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec

from arl.clock import deadline
from arl.errors import EngineError, EngineLost

KEEPALIVE_SECONDS = 2.0  # below the server's (SGLang: 5), so that it never closes a connection about to be used


def _explain(error: aiohttp.ClientError, where: str) -> EngineError:
    message = f"{where}: {type(error).__name__}: {error}"
    if isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError):
        return EngineLost(message)
    return EngineError(message)


class Http:
    """One server; every command has the deadline `seconds`. Construct inside a running loop, and `close`."""

    def __init__(self, url: str, key: str | None, seconds: float) -> None:
        self.url, self._seconds = url.rstrip("/"), seconds
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS),
            headers={"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {}),
            timeout=aiohttp.ClientTimeout(total=None),  # deadlines instead, which know who waits on whom
        )

    async def close(self) -> None:
        await self._session.close()

    def _address(self, path: str) -> str:
        if self._session.closed:  # by a task that saw the server end, while this one was busy with it
            raise EngineLost(f"{self.url}{path}: the client was closed")
        return self.url + path

    async def command(self, path: str, body: Any = None) -> bytes:
        """POST `body`, or GET without one, and expect 200.

        Raises:
            EngineError: another status, with what the server said.
            EngineLost: no connection, or it broke, or was closed.
            DeadlineError: no answer in time.
        """
        status, answer = await self.ask(path, body)
        if status != 200:
            raise EngineError(f"{self.url}{path} answered {status}: {answer[:500].decode(errors='replace')}")
        return answer

    async def ask(self, path: str, body: Any = None) -> tuple[int, bytes]:
        """Do what `command` does, but return any status, with the body."""
        data = None if body is None else msgspec.json.encode(body)
        method, address = "GET" if body is None else "POST", self._address(path)
        async with deadline(self._seconds, "engine client", f"{self.url}{path}"):
            try:
                async with self._session.request(method, address, data=data) as response:
                    return response.status, await response.read()
            except aiohttp.ClientError as error:
                raise _explain(error, self.url + path) from error

    @contextlib.asynccontextmanager
    async def stream(self, path: str, body: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        """POST `body`, and yield the data of the events that answer it. The caller has the deadline.

        Raises:
            EngineError: refused, or not server-sent events.
            EngineLost: no connection, or it broke, or was closed.
        """
        try:
            async with self._session.post(self._address(path), data=msgspec.json.encode(body)) as response:
                if response.status != 200:
                    raise EngineError(f"{path} answered {response.status}: {(await response.text())[:500]}")
                yield _events(response.content)
        except aiohttp.ClientError as error:
            raise _explain(error, path) from error


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the data of each event; one piece from the network may hold many of them, or a part of one."""
    rest = b""
    async for piece in content.iter_any():
        *events, rest = (rest + piece).split(b"\n\n")
        for event in events:
            if not event.startswith(b"data: "):
                raise EngineError(f"this is no server-sent event: {event[:200]!r}")
            yield event[6:]
