"""Serve routes of the embedded engine in this process, at a port of loopback."""

import contextlib
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web

from arl.engine.embedded.access import Access
from arl.engine.embedded.http_edge import HttpEdge
from arl.engine.embedded.routes import EngineRoutes
from arl.launch.address import LOOPBACK
from tests.engine.conftest import KEY


@contextlib.asynccontextmanager
async def served(routes: EngineRoutes) -> AsyncIterator[aiohttp.ClientSession]:
    """Yield a client that knows the key, with the server's address as its base."""
    edge = HttpEdge(routes.routes(), Access(KEY, [LOOPBACK]))
    runner = web.ServerRunner(edge, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, LOOPBACK, 0).start()
        port = runner.addresses[0][1]
        headers = {"Authorization": f"Bearer {KEY}"}
        async with aiohttp.ClientSession(f"http://{LOOPBACK}:{port}", headers=headers) as client:
            yield client
    finally:
        await runner.cleanup()
