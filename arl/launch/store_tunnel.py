"""Carry the connections of torch's stores through TLS, beyond loopback. Standard library only, as SGLang loads it, too.

    a rank: TCPStore ─► StoreTunnel ═══ TLS, then the run key ═══► StoreGate ─► TCPStore on rank 0
            loopback    loopback                                   the node's address      loopback

A TCPStore answers whoever connects: it lists keys, and has them changed. So it listens on loopback only. Its gate lets
in those who know the run key, and a stranger sees no byte of the store. Strangers may come by the thousand and say
nothing: only so many of them are held at once, so that the process keeps descriptors for its own files.
"""

import asyncio
import contextlib
import errno
import hmac
import socket
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import NamedTuple, NoReturn

LOOPBACK = "127.0.0.1"
START_SECONDS = 30.0  # in which a thread listens
HELLO_SECONDS = 10.0  # in which a connection must have shown the key, and its other half stand
CLOSE_SECONDS = 10.0  # in which connections are closed
PIECE = 1 << 16  # bytes that are passed on at once
MOST_UNKNOWN = 128  # connections that have not shown the key yet; the oldest gives way to a new one
FULL_SECONDS = 0.5  # before the next look, if this process or machine has no room for a connection
FULL = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
GONE = {errno.ECONNABORTED, errno.EPROTO, errno.ENETDOWN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH}


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
        self._unknown: list[asyncio.Task[None]] = []  # connections that have not shown the key, the oldest first
        self._open: set[asyncio.Task[None]] = set()
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
    async def far_end(self, near: StreamPair) -> StreamPair:
        """Connect the other half of a connection.

        Raises:
            OSError, EOFError: it is refused, or one of its ends is gone.
        """

    def _run(self) -> None:
        try:
            asyncio.run(self._listen())
        except OSError as error:
            if self._listens.done():
                raise
            self._listens.set_exception(error)

    async def _listen(self) -> None:
        """Accept connections until `close`, after which asyncio.run cancels those that are open."""
        loop = asyncio.get_running_loop()
        with self._listener:
            self._listener.listen()
            self._listener.setblocking(False)
            accepting = asyncio.create_task(self._accept())

            def end() -> None:
                loop.call_soon_threadsafe(accepting.cancel)

            self._listens.set_result(end)
            await asyncio.wait({accepting})
            if not accepting.cancelled():
                accepting.result()  # raises what went wrong; nobody can connect any more

    async def _accept(self) -> NoReturn:
        """Consumes connections; waits for the next; unblocked by it, or by `close`."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                if error.errno not in FULL | GONE:
                    raise
                await asyncio.sleep(FULL_SECONDS if error.errno in FULL else 0)
                continue
            if len(self._unknown) == MOST_UNKNOWN:
                self._unknown.pop(0).cancel()
            task = asyncio.create_task(self._serve(connection))
            self._unknown.append(task)
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            await asyncio.sleep(0)  # others have their turns, however many connections wait

    async def _serve(self, connection: socket.socket) -> None:
        """Find the other half of one connection, and join the two."""
        task = asyncio.current_task()
        assert task is not None
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                near = await _streams(connection, self._context)
                far = await self._far_end_or_abort(near)
        except (OSError, EOFError):  # also of time
            return  # whoever waits at either end sees that its connection is closed
        finally:
            if task in self._unknown:
                self._unknown.remove(task)
        with contextlib.suppress(TimeoutError):  # whoever has stopped to read loses the rest
            await _join(near, far)

    async def _far_end_or_abort(self, near: StreamPair) -> StreamPair:
        """Connect the other half of a connection that is closed at once if there is none, without a farewell.

        A stranger could let us wait for the answer to one.
        """
        try:
            return await self.far_end(near)
        except BaseException:  # also if it gives way to another one
            near.writer.transport.abort()
            raise


async def _streams(connection: socket.socket, context: ssl.SSLContext | None) -> StreamPair:
    """Speak with who has connected, in TLS if there is a context.

    Raises:
        OSError: the handshake fails.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol,
        connection,
        ssl=context,
        ssl_handshake_timeout=HELLO_SECONDS if context else None,
    )
    return StreamPair(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


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

    async def far_end(self, near: StreamPair) -> StreamPair:
        """Compare the key, then connect to the store."""
        shown = await near.reader.readexactly(len(self._key))
        if not hmac.compare_digest(shown, self._key):
            raise PermissionError("it does not know the run key")
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
    """Pass bytes on in both directions until one of the two ends; then close both, at once if this is cancelled."""
    copies = {
        asyncio.create_task(_copy(near.reader, far.writer)),
        asyncio.create_task(_copy(far.reader, near.writer)),
    }
    writers = (near.writer, far.writer)
    try:
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        await _cancelled(copies)
        for writer in writers:
            writer.close()  # what is on its way still leaves
        async with asyncio.timeout(CLOSE_SECONDS):
            await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)
    finally:
        for writer in writers:
            writer.transport.abort()
        await _cancelled(copies)


async def _cancelled(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel tasks, and wait for their ends. What they raise is the end of a connection."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on; waits for more; unblocked by them, by the end of either connection, or by `close`."""
    while piece := await reader.read(PIECE):
        writer.write(piece)
        await writer.drain()
