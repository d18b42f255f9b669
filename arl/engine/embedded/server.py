"""Serve the embedded engine over SGLang's HTTP protocol: `python -m arl.engine.embedded.server`.

command line ─► listening socket ─► model ─► EmbeddedEngine and its EngineRoutes ─► "ready <url>" ─► until SIGTERM

Every request must show a key: that in ARL_RUN_KEY, or a new one, which is printed behind the url and nowhere else.
"""

import asyncio
import hmac
import os
import signal
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import msgspec
import torch
from aiohttp import web
from msgspec import Struct

from arl.config.train_section import Lora
from arl.engine.embedded.batching import EmbeddedEngine
from arl.engine.embedded.routes import EngineRoutes
from arl.errors import ArlError, EngineError, InputError, short_message
from arl.launch.child import RUN_KEY, exit_immediately
from arl.launch.network import is_loopback, listening_address, new_key, server_context, tls_folder
from arl.models.load import load_model

SHUTDOWN_SECONDS = 1.0  # that handlers have at the end
BACKLOG = 1024  # connections that the kernel holds until they are accepted
MAX_BYTES = 1 << 30  # of a request's body: after a pause one holds the tokens of every open request
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ServerOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """Hold the options of one server, each of which is given as `--name value`."""

    model: str  # directory with config.json and model.safetensors
    host: str = ""  # address to listen on; empty: that of this node in the run, else loopback
    port: int = 30000  # 0: any free one, printed when ready
    slots: int = 256  # requests decoded together
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"  # auto: bfloat16 on a GPU
    head: Literal["auto", "float32"] = "auto"  # precision of logits: train.head
    threads: int = 0  # 0: as torch chooses
    stream_interval: int = 16  # tokens between two increments
    version: int = 0  # policy version of these weights
    lora: str = ""  # train.lora as JSON: `base` is served with adapters, which versions replace
    base: str = ""  # directory of the model below the adapters
    broadcast_seconds: float = 60.0  # after which a broadcast that does not move is given up


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve the model that the command line names; an error is one line, and exit code 2."""
    given = sys.argv[1:] if arguments is None else arguments
    names = [name.removeprefix("--").replace("-", "_") for name in given[::2]]
    try:
        options = dict(zip(names, given[1::2], strict=True))
        serve_model(msgspec.convert(options, ServerOptions, strict=False))
    except (ArlError, ValueError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def serve_model(options: ServerOptions) -> None:
    """Serve a model until SIGTERM or SIGINT.

    Raises:
        InputError: it cannot be served: the model, the key or the address is wrong.
    """
    if options.threads:
        torch.set_num_threads(options.threads)
    host = options.host or listening_address()
    key = os.environ.get(RUN_KEY)
    if not key and not is_loopback(host):
        raise InputError(f"--host {host} is beyond loopback: set {RUN_KEY}, or leave --host out")
    folder = tls_folder(host)
    tls = None if folder is None else server_context(folder)
    listener = _listen(host, options.port)
    on_gpu = torch.cuda.is_available()
    best = "bfloat16" if on_gpu else "float32"
    dtype = best if options.dtype == "auto" else options.dtype
    device = "cuda" if on_gpu else "cpu"
    if options.lora:
        from arl.models.lora import load_adapted  # and PEFT, a second to import

        lora = Lora.model_validate_json(options.lora)
        model = load_adapted(options.base, options.model, lora, dtype, device, options.head)
    else:
        model = load_model(options.model, dtype, device, options.head)
    engine = EmbeddedEngine(
        model,
        slots=options.slots,
        kv_policy="keep",  # clients with another policy have it retract at a pause
        stream_interval=options.stream_interval,
        version=options.version,
    )
    routes = EngineRoutes(engine, options.model, options.broadcast_seconds)
    made = new_key()
    runner = _make_runner(routes, key or made)
    address, port = listener.getsockname()[:2]
    name = f"[{address}]" if ":" in address else address  # of IPv6
    scheme = "http" if tls is None else "https"
    shown = "" if key else f" with Authorization: Bearer {made}"
    asyncio.run(_serve(engine, runner, listener, tls, f"ready {scheme}://{name}:{port}{shown}"))


def _listen(host: str, port: int) -> socket.socket:
    """Open the listening socket.

    Raises:
        InputError: the address is not this machine's, or not free.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError, ValueError) as error:  # OverflowError: the port; ValueError: no name of any host
        raise InputError(f"cannot listen on {host}:{port}: {error}; choose another --port, or --host") from error


def _make_runner(routes: EngineRoutes, key: str) -> web.AppRunner:
    """Return what serves `routes`. Every request must show the key as a bearer token."""
    token = f"Bearer {key}".encode()

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        shown = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if not hmac.compare_digest(shown, token):
            return web.Response(status=401, text="this server needs its run key: Authorization: Bearer <key>")
        try:
            return await handler(request)
        except (EngineError, msgspec.DecodeError) as error:
            return web.Response(status=400, text=short_message(str(error)))

    app = web.Application(middlewares=[guard], client_max_size=MAX_BYTES)
    app.add_routes(routes.routes())
    # A handler ends when its caller has gone.
    return web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_SECONDS)


async def _serve(
    engine: EmbeddedEngine, runner: web.AppRunner, listener: socket.socket, tls: ssl.SSLContext | None, ready: str
) -> None:
    """Serve until SIGTERM or SIGINT, or until the engine fails; print `ready` as soon as requests are answered."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await runner.setup()
    try:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(engine.run())
            await web.SockSite(runner, listener, ssl_context=tls, backlog=BACKLOG).start()
            print(ready, flush=True)
            await ended.wait()
            engine.abort()
            running.cancel()
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    main()
    exit_immediately(0)
