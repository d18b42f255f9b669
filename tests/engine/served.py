"""Serve routes of the embedded engine in this process, at a port of loopback."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator

import aiohttp

from arl.engine.embedded.access import Access
from arl.engine.embedded.http_edge import HttpEdge
from arl.engine.embedded.routes import EngineRoutes
from arl.launch.address import LOOPBACK
from tests.engine.conftest import KEY


@contextlib.asynccontextmanager
async def served(routes: EngineRoutes) -> AsyncIterator[aiohttp.ClientSession]:
    """Yield a client that knows the key, with the server's address as its base."""
    async with listening(routes) as port:
        headers = {"Authorization": f"Bearer {KEY}"}
        async with aiohttp.ClientSession(f"http://{LOOPBACK}:{port}", headers=headers) as client:
            yield client


@contextlib.asynccontextmanager
async def listening(routes: EngineRoutes, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Yield the port of a server."""
    edge = HttpEdge(routes.routes(), Access(KEY, [LOOPBACK]))
    listener = socket.create_server((LOOPBACK, 0))
    port: int = listener.getsockname()[1]
    task = asyncio.create_task(edge.listen(listener, tls))
    try:
        yield port
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled(), task.exception()
        await edge.close()
