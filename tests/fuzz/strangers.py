"""Send bytes to a port as anybody can, and run a listener beside that in a thread of its own."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any, TypeVar

import msgspec

from arl.launch.address import LOOPBACK
from tests.fuzz.damage import damage_bytes
from tests.network.stranger import Stranger

SECONDS = 20.0
ANSWER_SECONDS = 0.02  # for the answer to a stranger, which may be none
MOST_SILENT = 64  # connections that stay open and say nothing more
Value = TypeVar("Value")


class Background:
    """Run an event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Run a coroutine there, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)

    def begin(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Begin a task there."""

        async def create() -> "asyncio.Task[Any]":
            return asyncio.create_task(work)

        return self.call(create())

    def close(self) -> None:
        """End the loop, which has no tasks any more."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()


class SilentCrowd:
    """Hold connections that say nothing more, each until enough others have come."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def add(self, connection: socket.socket) -> None:
        """Leave a connection open."""
        self._held.append(connection)
        if len(self._held) > MOST_SILENT:
            self._held.pop(0).close()

    def close(self) -> None:
        """Close all of them."""
        for connection in self._held:
            connection.close()


@contextlib.contextmanager
def crowd() -> Iterator[SilentCrowd]:
    """Yield a crowd, and close it afterwards."""
    made = SilentCrowd()
    try:
        yield made
    finally:
        made.close()


def say(
    port: int,
    pieces: list[bytes],
    silent: SilentCrowd,
    stays: bool,
    wrap: Callable[[socket.socket], socket.socket] | None = None,
) -> bytes:
    """Send pieces, and return what comes back.

    Args:
        stays: leave the connection open, without a word.
        wrap: makes a TLS connection of a plain one.
    """
    answer = b""
    connection = socket.create_connection((LOOPBACK, port), SECONDS)
    try:
        with contextlib.suppress(OSError):  # whatever the listener does with a stranger
            connection = connection if wrap is None else wrap(connection)
            for piece in pieces:
                connection.sendall(piece)
            connection.settimeout(ANSWER_SECONDS)
            while len(answer) < 1 << 16 and (received := connection.recv(4096)):
                answer += received
    finally:
        if stays:
            silent.add(connection)
        else:
            connection.close()
    return answer


def messages(random: Random) -> list[bytes]:
    """Return what strangers of several protocols send."""
    stranger = Stranger(random.getrandbits(32), {})
    return [
        stranger.garbage(),
        stranger.request(),
        stranger.zmtp(b"NULL"),
        stranger.zmtp(b"PLAIN"),
        stranger.zmtp(b"CURVE"),
        stranger.store(),
    ]


def damaged(random: Random, whole: bytes) -> list[bytes]:
    """Return a message, mostly damaged, in one to three pieces."""
    data = whole if random.random() < 0.1 else damage_bytes(random, whole)
    places = sorted(random.randint(0, len(data)) for _ in range(random.choice((0, 0, 1, 2))))
    begins = [0, *places]
    ends = [*places, len(data)]
    return [data[begin:end] for begin, end in zip(begins, ends, strict=True)]


def shown(pieces: list[bytes]) -> str:
    """Return a message in short."""
    data = b"".join(pieces)
    return f"{len(data)} bytes in {len(pieces)} pieces: {data[:200]!r}"


def as_json(value: Any) -> bytes:
    """Encode a value of any kind, also one that no encoder takes: Python does not print integers of 4,300 digits."""
    try:
        return json.dumps(value).encode()
    except ValueError:
        return ascii(type(value)).encode()


def as_msgpack(value: Any) -> bytes:
    """Encode a value; what msgpack does not have becomes a byte that it never uses."""
    try:
        return msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeError, RecursionError):
        return b"\xc1"
