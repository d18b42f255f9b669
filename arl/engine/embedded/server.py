"""Serve the embedded engine over SGLang's HTTP protocol: `python -m arl.engine.embedded.server`.

command line ─► listening socket ─► model ─► EmbeddedEngine and its EngineRoutes ─► "ready <url>" ─► until SIGTERM

Every request must show a key: that in ARL_RUN_KEY, or a new one, which is printed behind the url and nowhere else.
"""

import argparse
import asyncio
import hmac
import os
import signal
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from aiohttp import web

from arl.data.model_limits import end_token_ids
from arl.engine.embedded.batching import EmbeddedEngine
from arl.engine.embedded.routes import EngineRoutes
from arl.engine.http import wire
from arl.errors import ArlError, EngineError, InputError, short_message
from arl.launch.child import RUN_KEY, exit_immediately
from arl.launch.network import TLS, free_listener, is_loopback, listening_address, new_key, server_context, tls_folder
from arl.models.load import DTYPES, load_model

SHUTDOWN_SECONDS = 1.0  # that handlers have at the end
MAX_CHARACTERS = 1800  # of an error
BACKLOG = 1024  # connections that the kernel holds until they are accepted
RANGES = {"port": (0, 65_535), "slots": (1, 2**31 - 1)}  # of what `arl serve` takes; a recipe checks the rest
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ListeningPlace(NamedTuple):
    """Hold where and for whom a server listens."""

    listener: socket.socket
    key: str
    tls: ssl.SSLContext | None
    shows_key: bool = False  # it is new, and printed when ready


def main(arguments: list[str] | None = None) -> None:
    """Serve the model that the command line names; an error is one line, and exit code 2."""
    try:
        serve_model(arguments)
    except ArlError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def serve_model(arguments: list[str] | None) -> None:
    """Serve the model that the command line names, until SIGTERM or SIGINT.

    Raises:
        InputError: it cannot be served: the model, an option or the address is wrong.
    """
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    place = _listening_place(options.host, options.port)
    on_gpu = torch.cuda.is_available()
    best = "bfloat16" if on_gpu else "float32"
    dtype = best if options.dtype == "auto" else options.dtype
    model = load_model(options.model, dtype, "cuda" if on_gpu else "cpu", options.head)
    engine = EmbeddedEngine(
        model, slots=options.slots, stream_interval=options.stream_interval, version=options.version
    )
    eos = end_token_ids(options.model)
    routes = EngineRoutes(engine, str(Path(options.model)), eos, options.broadcast_seconds)
    asyncio.run(serve(routes, engine, place))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line; None: this process's own.

    Raises:
        InputError: a value cannot be served; says which can.
        SystemExit: it is no command line, as argparse has said.
    """
    parser = argparse.ArgumentParser("arl.engine.embedded.server", description="Serve the embedded engine over HTTP.")
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
    for name, (least, most) in RANGES.items():
        value = getattr(options, name)
        if not least <= value <= most:
            raise InputError(f"--{name.replace('_', '-')} {value} must be from {least} to {most}")
    if os.path.exists(options.model) and not os.path.isdir(options.model):  # what is not there may be a name of the Hub
        raise InputError(
            f"--model {options.model} is no directory: give the one that config.json and model.safetensors are in"
        )
    return options


def _listening_place(host: str, port: int) -> ListeningPlace:
    """Open the listening socket, with the key and the certificate of the environment.

    Raises:
        InputError: the address is not this machine's, or not free; beyond loopback there is no key; or the certificate
            cannot be read.
    """
    key = os.environ.get(RUN_KEY)
    if not key and not is_loopback(host):
        raise InputError(f"--host {host} is beyond loopback: set {RUN_KEY}, or exit_immediately --host out")
    folder = tls_folder(host)
    try:
        context = None if folder is None else server_context(folder)
    except OSError as error:
        raise InputError(f"{TLS} {folder}: no certificate.pem with its key.pem: {error}") from error
    return ListeningPlace(_listen(host, port), key or new_key(), context, shows_key=not key)


def _listen(host: str, port: int) -> socket.socket:
    """Open the listening socket.

    Raises:
        InputError: the address is not this machine's, or not free.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        if port == 0:
            return free_listener(host)  # the server listens on it
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, ValueError, UnicodeError) as error:  # ValueError, UnicodeError: no name of any host
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"cannot listen on {host}:{port}: {why}; choose another --port, or --host") from error


def _make_runner(routes: Iterable[web.RouteDef], key: str) -> web.AppRunner:
    """Return what serves `routes`, whose handlers raise an EngineError or a DecodeError for bad input.

    Args:
        key: which every request must show as a bearer token
    """
    token = f"Bearer {key}".encode()

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        shown = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if not hmac.compare_digest(shown, token):
            return _error_answer(401, "this server needs its run key: Authorization: Bearer <key>")
        try:
            return await handler(request)
        except (EngineError, msgspec.DecodeError) as error:
            return _error_answer(400, str(error))
        except web.HTTPRequestEntityTooLarge:
            return _error_answer(413, f"a body may have {wire.MAX_BYTES} bytes: send several")
        except web.HTTPException as error:  # there is no such path, or it takes another method
            return _error_answer(error.status, error.reason)

    app = web.Application(middlewares=[guard], client_max_size=wire.MAX_BYTES)
    app.add_routes(routes)
    # A handler ends when its caller has gone.
    return web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_SECONDS)


def _error_answer(status: int, reason: str) -> web.Response:
    """Answer with an error as JSON, which names what is wrong in a few lines."""
    message = short_message(reason)[:MAX_CHARACTERS]
    body = msgspec.json.encode({"error": {"message": message, "code": status}})
    return web.Response(status=status, body=body, content_type="application/json")


async def serve(routes: EngineRoutes, engine: EmbeddedEngine, place: ListeningPlace) -> None:
    """Serve at `place` until SIGTERM or SIGINT, or until the engine fails."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    address, port = place.listener.getsockname()[:2]
    runner = _make_runner(routes.routes(), place.key)
    await runner.setup()
    try:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(engine.run())
            await web.SockSite(runner, place.listener, ssl_context=place.tls, backlog=BACKLOG).start()
            host = f"[{address}]" if ":" in address else address  # of IPv6
            scheme = "http" if place.tls is None else "https"
            shown = f" with Authorization: Bearer {place.key}" if place.shows_key else ""
            print(f"ready {scheme}://{host}:{port}{shown}", flush=True)
            await ended.wait()
            await engine.pause("abort")
            running.cancel()
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    main()
    exit_immediately(0)
