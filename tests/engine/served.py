"""Serve routes of the embedded engine in this process, at a port of loopback."""

import contextlib
import socket
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web

from arl.engine.embedded.http_app import make_runner
from arl.engine.embedded.routes import EngineRoutes
from arl.launch.address import LOOPBACK
from tests.engine.conftest import KEY


@contextlib.asynccontextmanager
async def served(routes: EngineRoutes) -> AsyncIterator[aiohttp.ClientSession]:
    """Yield a client that knows the key, with the server's address as its base."""
    runner = make_runner(routes.routes(), KEY)
    await runner.setup()
    listener = socket.create_server((LOOPBACK, 0))
    await web.SockSite(runner, listener).start()
    headers = {"Authorization": f"Bearer {KEY}"}
    try:
        async with aiohttp.ClientSession(f"http://{LOOPBACK}:{listener.getsockname()[1]}", headers=headers) as client:
            yield client
    finally:
        await runner.cleanup()
