"""Carry the connections of ranks to the controller, and reset them when the test says so, as a firewall does."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from arl.launch.address import LOOPBACK
from arl.train.channel import ADDRESS

RESET = struct.pack("ii", 1, 0)  # of SO_LINGER: close sends RST


class ResettingProxy:
    """Listen on loopback for ranks whose environment is `environment`.

    Args:
        controller: environment of ranks that connect directly.
    """

    def __init__(self, controller: Mapping[str, str]) -> None:
        _, _, port = controller[ADDRESS].rpartition(":")
        self._port = int(port)
        self._controller = controller
        self._ends: list[asyncio.StreamWriter] = []
        self._copies: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0)
        port = self._server.sockets[0].getsockname()[1]
        self.environment = {**self._controller, ADDRESS: f"tcp://{LOOPBACK}:{port}"}
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.reset()
        await asyncio.gather(*self._copies, return_exceptions=True)

    def reset(self) -> None:
        """Reset every connection, in both directions."""
        for end in self._ends:
            end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            end.transport.abort()
        self._ends.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(LOOPBACK, self._port)
        self._ends += [writer, far_writer]
        for source, target in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(_copy(source, target))
            self._copies.add(task)
            task.add_done_callback(self._copies.discard)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while piece := await source.read(1 << 16):
            target.write(piece)
            await target.drain()
    target.close()
