"""Serve the embedded engine over SGLang's HTTP protocol: `python -m arl.engine.embedded.server`.

command line ─► listening socket ─► model ─► EmbeddedEngine and its EngineRoutes ─► "ready <url>" ─► until SIGTERM
"""

import argparse
import asyncio
import os
import signal
import socket
import ssl
import sys
from pathlib import Path
from typing import Any

import torch
from aiohttp import web

from arl.data.generation_config import end_token_ids
from arl.engine.embedded.batching import EmbeddedEngine
from arl.engine.embedded.routes import EngineRoutes
from arl.errors import ArlError, EngineError
from arl.launch.address import free_listener, is_loopback, listening_address
from arl.launch.child import RUN_KEY, leave
from arl.launch.tls import TLS, server_context, tls_folder
from arl.models.load import DTYPES, load_model


def main(arguments: list[str] | None = None) -> None:
    """Serve the model that the command line names."""
    parser = argparse.ArgumentParser("arl.engine.embedded.server", description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="directory with config.json and model.safetensors")
    parser.add_argument("--host", default=listening_address(), help="address to listen on")
    parser.add_argument("--port", type=int, default=30000, help="0: any free one, printed when ready")
    parser.add_argument("--slots", type=int, default=256, help="requests decoded together")
    parser.add_argument("--dtype", choices=("auto", *DTYPES), default="auto", help="auto: bfloat16 on a GPU")
    parser.add_argument("--head", choices=("auto", "float32"), default="auto", help="precision of logits: train.head")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--stream-interval", type=int, default=16, help="tokens between two increments")
    parser.add_argument("--version", type=int, default=0, help="policy version of these weights")
    parser.add_argument(
        "--broadcast-seconds", type=float, default=60, help="after which a broadcast that does not move is given up"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    key = os.environ.get(RUN_KEY) or None
    has_gpu = torch.cuda.is_available()
    device = "cuda" if has_gpu else "cpu"
    best = "bfloat16" if has_gpu else "float32"
    dtype = best if options.dtype == "auto" else options.dtype
    try:
        listener = _listen(options.host, options.port, key)
        tls = _tls(options.host)
        model = load_model(options.model, dtype, device, options.head)
        eos = end_token_ids(options.model)
    except ArlError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    asyncio.run(_main(options, model, eos, listener, key, tls))


def _listen(host: str, port: int, key: str | None) -> socket.socket:
    """Open the listening socket.

    Raises:
        EngineError: other machines could use it without a key, or the address is not free.
        InputError: no port is free.
    """
    if not is_loopback(host) and not key:
        raise EngineError(f"--host {host} is beyond loopback: set ARL_RUN_KEY, or leave --host out")
    if port == 0:
        return free_listener(host)  # the server listens on it
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise EngineError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from error


def _tls(host: str) -> ssl.SSLContext | None:
    """Return the context with the certificate that the environment names; None: it names none.

    Raises:
        EngineError: it cannot be read.
    """
    folder = tls_folder(host)
    if folder is None:
        return None
    try:
        return server_context(folder)
    except OSError as error:
        raise EngineError(f"{TLS} {folder}: no certificate.pem with its key.pem: {error}") from error


async def _main(
    options: argparse.Namespace,
    model: Any,
    eos: tuple[int, ...],
    listener: socket.socket,
    key: str | None,
    tls: ssl.SSLContext | None,
) -> None:
    engine = EmbeddedEngine(
        model,
        slots=options.slots,
        stream_interval=options.stream_interval,
        version=options.version,
    )
    routes = EngineRoutes(engine, str(Path(options.model)), eos, key, options.broadcast_seconds)
    await serve(routes, engine, listener, tls)


async def serve(
    routes: EngineRoutes, engine: EmbeddedEngine, listener: socket.socket, tls: ssl.SSLContext | None = None
) -> None:
    """Serve on `listener` until SIGTERM or SIGINT, or until the engine fails."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    runner = web.AppRunner(
        routes.app(),
        handler_cancellation=True,
        shutdown_timeout=1.0,
        access_log=None,
    )
    await runner.setup()
    try:
        await web.SockSite(runner, listener, ssl_context=tls).start()
        host, port = listener.getsockname()[:2]
        address = f"[{host}]" if ":" in host else host  # of IPv6
        scheme = "http" if tls is None else "https"
        print(f"ready {scheme}://{address}:{port}", flush=True)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(engine.run())
            await ended.wait()
            await engine.pause("abort")
            running.cancel()
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    main()
    leave(0)
