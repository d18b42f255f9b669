"""Carry the connections of torch's stores through TLS, beyond loopback. Standard library only, as SGLang loads it, too.

    a rank: TCPStore ─► StoreTunnel ═══ TLS, then the run key ═══► StoreGate ─► TCPStore on rank 0
            loopback    loopback                                   the node's address      loopback

A TCPStore answers whoever connects: it lists keys, and has them changed. So it listens on loopback only. Its gate lets
in those who know the run key, and a stranger sees no byte of the store.
"""

import asyncio
import hmac
import socket
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

LOOPBACK = "127.0.0.1"
START_SECONDS = 30.0  # in which a thread listens
HELLO_SECONDS = 10.0  # in which a connection must have shown the key, and its other half stand
CLOSE_SECONDS = 10.0  # in which connections are closed
PIECE = 1 << 16  # bytes that are passed on at once


class StreamPair(NamedTuple):
    """Hold both directions of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class _Relay(ABC):
    """Serve one listening socket in a thread of its own, until it is closed or the process ends.

    Raises:
        OSError: the socket cannot listen.
    """

    def __init__(self, listener: socket.socket, name: str, context: ssl.SSLContext | None) -> None:
        self._listener = listener
        self._context = context
        self._listens: Future[Callable[[], None]] = Future()  # what ends it
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._end = self._listens.result(START_SECONDS)

    def close(self) -> None:
        """Close the listening socket and every connection."""
        if self._thread.is_alive():
            self._end()
            self._thread.join(CLOSE_SECONDS)  # it is a daemon: one that hangs ends with the process

    @abstractmethod
    async def far_end(self, near: StreamPair) -> StreamPair | None:
        """Connect the other half of a connection; None: it is refused.

        Raises:
            OSError, EOFError: one of its ends is gone.
        """

    def _run(self) -> None:
        try:
            asyncio.run(self._listen())
        except OSError as error:
            if self._listens.done():
                raise
            self._listens.set_exception(error)

    async def _listen(self) -> None:
        """Accept connections; waits for the next, or for `close`, after which asyncio.run cancels all of them."""
        loop = asyncio.get_running_loop()
        closed = asyncio.Event()
        seconds = HELLO_SECONDS if self._context else None
        server = await asyncio.start_server(
            self._serve,
            sock=self._listener,
            ssl=self._context,
            ssl_handshake_timeout=seconds,
        )

        def end() -> None:
            loop.call_soon_threadsafe(closed.set)

        self._listens.set_result(end)
        await closed.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        near = StreamPair(reader, writer)
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                far = await self.far_end(near)
            if far is not None:
                await _join(near, far)
        except (OSError, EOFError):
            pass  # whoever waits at either end sees that its connection is closed
        finally:
            writer.close()


class StoreGate(_Relay):
    """Let those who know the run key through to the store on loopback.

    Args:
        listener: of the node's address.
        port: where the store listens, on loopback.
        key: of the run.
        context: shows the run's certificate.
    """

    def __init__(self, listener: socket.socket, port: int, key: str, context: ssl.SSLContext) -> None:
        self._port = port
        self._key = key.encode()
        super().__init__(listener, "store gate", context)

    async def far_end(self, near: StreamPair) -> StreamPair | None:
        """Compare the key, then connect to the store."""
        shown = await near.reader.readexactly(len(self._key))
        if not hmac.compare_digest(shown, self._key):
            return None
        connection = await asyncio.open_connection(LOOPBACK, self._port)
        return StreamPair(*connection)


class StoreTunnel(_Relay):
    """Reach a store behind its gate at `port` of loopback.

    Args:
        host, gate: where the gate listens.
        key: of the run.
        context: accepts the run's certificate alone.
    """

    def __init__(self, host: str, gate: int, key: str, context: ssl.SSLContext) -> None:
        self._host = host
        self._gate = gate
        self._key = key.encode()
        self._client_context = context
        listener = socket.create_server((LOOPBACK, 0))
        self.port: int = listener.getsockname()[1]
        super().__init__(listener, "store tunnel", None)

    async def far_end(self, near: StreamPair) -> StreamPair:
        """Connect to the gate, and show the key there."""
        connection = await asyncio.open_connection(
            self._host,
            self._gate,
            ssl=self._client_context,
        )
        far = StreamPair(*connection)
        far.writer.write(self._key)
        return far


async def _join(near: StreamPair, far: StreamPair) -> None:
    """Pass bytes on in both directions until one of the two ends; then both are closed."""
    forth = asyncio.create_task(_copy(near.reader, far.writer))
    back = asyncio.create_task(_copy(far.reader, near.writer))
    try:
        await asyncio.wait({forth, back}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        forth.cancel()
        back.cancel()
        await asyncio.gather(forth, back, return_exceptions=True)
        far.writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on; waits for more; unblocked by them, by the end of either connection, or by `close`."""
    while piece := await reader.read(PIECE):
        writer.write(piece)
        await writer.drain()
