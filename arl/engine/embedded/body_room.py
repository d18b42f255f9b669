"""Read the bodies of requests, and bound what all of those that are not complete hold together.

a body ─► its first bytes, which take no room ─► its place in line ─► room for all of it ─► the whole body
                                                                        └─► who has room and is slow gives way

A large body takes its room at once and as a whole. So each that has begun can end, and none waits for another one that
waits as well.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

from aiohttp import StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

from arl.clock import now
from arl.engine.embedded.access import RequestRefused
from arl.engine.http import wire

FREE_BYTES = 1 << 18  # of a body that take no room: a small one never waits for large ones
MOST_HELD = 4 * wire.MOST_BYTES  # of all larger ones together
BODY_SECONDS = 60.0  # in which a body must be here
GIVE_WAY_SECONDS = 10.0  # in which one that has room must be here if others wait for room
# Brackets and commas of one body, those in names as well: 6 of each for a request, and some.
MOST_PARTS = 16 * wire.MOST_REQUESTS
MOST_VALUES = wire.MOST_TOKENS + 16 * wire.MOST_REQUESTS  # the ids of a batch, and the fields of its requests


class BodyRoom:
    """Hold the bodies of one server while they are read and decoded."""

    def __init__(self) -> None:
        self._free = MOST_HELD
        self._line = asyncio.Lock()  # the first in line waits for room
        self._freed = asyncio.Event()
        self._arriving: dict[asyncio.Timeout, float] = {}  # since when each large body has room

    @contextlib.asynccontextmanager
    async def receive(self, content: StreamReader, declared: int) -> AsyncIterator[bytearray]:
        """Yield a whole body, and hold its room meanwhile. Not by request.read(), which keeps it with its connection.

        Args:
            declared: its length by its header

        Raises:
            RequestRefused: it is too large or too slow, breaks off, or there is no room for it.
        """
        if declared > wire.MOST_BYTES:
            raise _too_large()
        async with contextlib.AsyncExitStack() as room:
            try:
                data = await self._read(content, declared, room)
            except (web.RequestPayloadError, HttpProcessingError) as error:
                raise RequestRefused(400, f"the body breaks off: {error}") from None
            yield data

    async def _read(self, content: StreamReader, num_bytes: int, room: contextlib.AsyncExitStack) -> bytearray:
        """Read a body of `num_bytes`; a large one takes room, which `room` gives back when it is closed."""
        body = _Body()
        has_room = True
        try:
            async with asyncio.timeout(BODY_SECONDS) as patience:
                await body.read(content, FREE_BYTES)
                if len(body.data) > FREE_BYTES:
                    has_room = False
                    await room.enter_async_context(self._take(num_bytes))
                    has_room = True
                    with self._may_be_hurried(patience):
                        await body.read(content, num_bytes)
        except TimeoutError:
            raise _too_slow() if has_room else _no_room() from None
        return body.data

    @contextlib.asynccontextmanager
    async def _take(self, num_bytes: int) -> AsyncIterator[None]:
        """Hold room. Waits for it in line; unblocked by bodies that are decoded, or refused."""
        async with self._line:
            while self._free < num_bytes:
                self._hurry()
                self._freed.clear()
                await self._freed.wait()
            self._free -= num_bytes
        try:
            yield
        finally:
            self._free += num_bytes
            self._freed.set()

    @contextlib.contextmanager
    def _may_be_hurried(self, patience: asyncio.Timeout) -> Iterator[None]:
        self._arriving[patience] = now()
        try:
            yield
        finally:
            del self._arriving[patience]

    def _hurry(self) -> None:
        """Have the bodies that have room give way soon, because another one waits for room."""
        for patience, since in self._arriving.items():
            latest = since + GIVE_WAY_SECONDS
            end = patience.when()
            if end is not None and latest < end and not patience.expired():
                patience.reschedule(latest)


class _Body:
    """Keep what has come of a body, and count what decoding it would make."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._num_parts = 0
        self._num_values = 0

    async def read(self, content: StreamReader, most: int) -> None:
        """Read to the end, or until more than `most` bytes have come.

        Raises:
            RequestRefused: it holds too much.
        """
        while len(self.data) <= most and (piece := await content.readany()):
            self._num_parts += piece.count(b"[") + piece.count(b"{")
            self._num_values += piece.count(b",")
            if self._num_parts > MOST_PARTS:
                raise RequestRefused(
                    413,
                    f"a body may hold {MOST_PARTS} opening brackets, and {wire.MOST_REQUESTS} requests: send several",
                )
            if self._num_values > MOST_VALUES:
                raise RequestRefused(
                    413, f"a body may hold {MOST_VALUES} commas, and {wire.MOST_TOKENS} ids: send several"
                )
            self.data += piece


def _too_large() -> RequestRefused:
    return RequestRefused(413, f"a body may have {wire.MOST_BYTES} bytes: send several")


def _too_slow() -> RequestRefused:
    return RequestRefused(
        408,
        f"the body was not complete in time: it has {BODY_SECONDS:g} s, and a large one has {GIVE_WAY_SECONDS:g} s "
        "while others wait for its room",
    )


def _no_room() -> RequestRefused:
    return RequestRefused(
        503, f"there was no room for this body within {BODY_SECONDS:g} s, because others send large ones: send it again"
    )
