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
from collections.abc import Awaitable, Callable

LOOPBACK = "127.0.0.1"
HELLO_SECONDS = 10.0  # in which a connection must have shown the key
CLOSE_SECONDS = 10.0  # in which connections are closed
PIECE = 1 << 16  # bytes that are passed on at once
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class _Relay(ABC):
    """Serve one listening socket in a thread of its own, until it is closed or the process ends."""

    def __init__(self, listener: socket.socket, name: str, context: ssl.SSLContext | None) -> None:
        self._listener = listener
        self._context = context
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the listening socket and every connection."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_SECONDS)  # it is a daemon: one that hangs ends with the process

    @abstractmethod
    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""

    def _run(self) -> None:
        """Accept connections; waits for the next, or for `close`, which ends all of them."""
        seconds = HELLO_SECONDS if self._context else None
        start = asyncio.start_server(self._serve, sock=self._listener, ssl=self._context, ssl_handshake_timeout=seconds)
        server = self._loop.run_until_complete(start)
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(_end_connections())
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self.serve(reader, writer)
        except (OSError, EOFError, TimeoutError):
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

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Compare the key, then pass everything on."""
        async with asyncio.timeout(HELLO_SECONDS):
            shown = await reader.readexactly(len(self._key))
        if hmac.compare_digest(shown, self._key):
            await _join((reader, writer), await asyncio.open_connection(LOOPBACK, self._port))


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

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Show the key at the gate, then pass everything on."""
        async with asyncio.timeout(HELLO_SECONDS):
            far = await asyncio.open_connection(self._host, self._gate, ssl=self._client_context)
        far[1].write(self._key)
        await _join((reader, writer), far)


async def _end_connections() -> None:
    """Cancel every task of the running loop but this one, and wait until they have ended."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


async def _join(
    near: tuple[asyncio.StreamReader, asyncio.StreamWriter], far: tuple[asyncio.StreamReader, asyncio.StreamWriter]
) -> None:
    """Pass bytes on in both directions until one of the two ends; then both are closed."""
    try:
        forth = asyncio.create_task(_copy(near[0], far[1]))
        back = asyncio.create_task(_copy(far[0], near[1]))
        try:
            await asyncio.wait({forth, back}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            forth.cancel()
            back.cancel()
            await asyncio.gather(forth, back, return_exceptions=True)
    finally:
        far[1].close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(PIECE):
        writer.write(piece)
        await writer.drain()
