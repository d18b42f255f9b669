"""Accept connections of anybody, and hold few of those that have not shown the key yet.

listening socket ─► a connection that nobody knows ─► it shows the key, and stays
                                  └─► closed: in time it has shown none, or it gives way to a new one

Each connection takes a descriptor of this process, which needs others for its own files and for those who know the key.
"""

import asyncio
import resource
import socket
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from arl.clock import now
from arl.launch.store_tunnel import FULL, FULL_SECONDS, GONE, HELLO_SECONDS, MOST_UNKNOWN

BACKLOG = 1024  # connections that the kernel holds until they are accepted
GIVE_WAY_SECONDS = 1.0  # after which one gives way: an honest client may open hundreds at once, and is not closed then
SHARE = 4  # of the descriptors, one of so many may be of a connection that nobody knows

Welcome = Callable[[socket.socket], Coroutine[Any, Any, None]]


class Door:
    """Accept the connections of one socket.

    Args:
        listener: listens already, and does not block
        welcome: returns when a connection has shown the key or is gone; closes it when it is cancelled
    """

    def __init__(self, listener: socket.socket, welcome: Welcome) -> None:
        self._listener = listener
        self._welcome = welcome
        self._unknown: dict[asyncio.Task[None], float] = {}  # since when it is here; the oldest first

    async def accept(self) -> NoReturn:
        """Accept until cancelled, which closes every connection that has not shown the key.

        Consumes connections. Waits for the next, and for room; unblocked by it, and by those that leave.
        """
        try:
            while True:
                connection = await self._next()
                try:
                    await self._make_room()
                except BaseException:
                    connection.close()
                    raise
                task = asyncio.create_task(self._serve(connection))
                self._unknown[task] = now()
                task.add_done_callback(self._unknown.pop)
                await asyncio.sleep(0)  # others have their turns, however many connections wait
        finally:
            await asyncio.sleep(0)  # the last one begins, so that it can be closed
            tasks = list(self._unknown)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _next(self) -> socket.socket:
        """Return the next connection, as soon as this process has a descriptor for it."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                if error.errno not in FULL | GONE:
                    raise
                await asyncio.sleep(FULL_SECONDS if error.errno in FULL else 0)
            else:
                return connection

    async def _make_room(self) -> None:
        """Wait until there is room for one more: another leaves, or the oldest gives way when it has had its time."""
        while len(self._unknown) >= _most_unknown():
            oldest, since = next(iter(self._unknown.items()))
            left = since + GIVE_WAY_SECONDS - now()
            if left <= 0:
                oldest.cancel()
            await asyncio.wait(
                self._unknown,
                timeout=left if left > 0 else None,
                return_when=asyncio.FIRST_COMPLETED,
            )

    async def _serve(self, connection: socket.socket) -> None:
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                await self._welcome(connection)
        except OSError:  # also of time
            return  # whoever waits at the other end sees that its connection is closed


def _most_unknown() -> int:
    """Return how many connections may be here that have not shown the key."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return MOST_UNKNOWN
    return max(1, min(MOST_UNKNOWN, limit // SHARE))
