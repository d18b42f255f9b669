"""Serve the embedded engine over SGLang's HTTP protocol: `python -m arl.engine.embedded.server`.

command line ─► listening socket ─► model ─► EmbeddedEngine and its EngineRoutes ─► "ready <url>" ─► until SIGTERM

Every request must show a key: that in ARL_RUN_KEY, or a new one, which is printed behind the url and nowhere else.
"""

import asyncio
import os
import signal
import socket
import ssl
import stat
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch

from arl.data.model_directory import end_token_ids
from arl.engine.embedded.access import Access
from arl.engine.embedded.batching import EmbeddedEngine
from arl.engine.embedded.door import BACKLOG
from arl.engine.embedded.http_edge import HttpEdge
from arl.engine.embedded.routes import EngineRoutes
from arl.engine.embedded.server_options import ServerOptions, parse
from arl.errors import ArlError, InputError
from arl.launch.address import free_listener, new_key
from arl.launch.child import RUN_KEY, leave
from arl.launch.tls import TLS, is_loopback, server_context, tls_folder
from arl.models.load import load_model
from arl.sync.node_copy import NodeCopies


class Key(NamedTuple):
    """Hold the key that requests must show."""

    value: str
    is_new: bool  # nobody knows it yet


class ListeningPlace(NamedTuple):
    """Hold where and for whom a server listens."""

    listener: socket.socket
    host: str  # as it was given
    key: Key
    tls: ssl.SSLContext | None


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
        InputError: it cannot be served: the model, an option, the address or the memory is wrong.
    """
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    key = _key(options.host)
    place = ListeningPlace(_listen(options.host, options.port), options.host, key, _tls(options.host))
    model = load_model(options.model, options.weight_dtype, options.device, options.head)
    eos = end_token_ids(options.model)
    asyncio.run(_main(options, model, eos, place))


def _key(host: str) -> Key:
    """Return the key of the environment, or a new one.

    Raises:
        InputError: without a key of yours it would be printed where others may read it, or could not be.
    """
    given = os.environ.get(RUN_KEY)
    if given:
        return Key(given, is_new=False)
    if not is_loopback(host):
        raise InputError(f"--host {host} is beyond loopback: set {RUN_KEY}, or leave --host out")
    if stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode):
        raise InputError(f"a new key is not written to a file: set {RUN_KEY} to one of your own")
    key = Key(new_key(), is_new=True)
    os.environ[RUN_KEY] = key.value  # where process groups look for it
    return key


def _listen(host: str, port: int) -> socket.socket:
    """Open the listening socket.

    Raises:
        InputError: the address is not this machine's, or not free.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        if port == 0:
            return free_listener(host)  # the server listens on it
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, ValueError, UnicodeError) as error:  # ValueError, UnicodeError: no name of any host
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"cannot listen on {host}:{port}: {why}; choose another --port, or --host") from error


def _tls(host: str) -> ssl.SSLContext | None:
    """Return the context with the certificate that the environment names; None: it names none.

    Raises:
        InputError: it cannot be read.
    """
    folder = tls_folder(host)
    if folder is None:
        return None
    try:
        return server_context(folder)
    except OSError as error:
        raise InputError(f"{TLS} {folder}: no certificate.pem with its key.pem: {error}") from error


async def _main(options: ServerOptions, model: Any, eos: tuple[int, ...], place: ListeningPlace) -> None:
    engine = EmbeddedEngine(
        model,
        slots=options.slots,
        stream_interval=options.stream_interval,
        version=options.version,
    )
    seconds = options.broadcast_seconds
    copies = NodeCopies.from_environment(seconds)
    routes = EngineRoutes(engine, str(Path(options.model)), eos, seconds, copies)
    try:
        await serve(routes, engine, place)
    finally:
        if copies is not None:
            copies.close()


async def serve(routes: EngineRoutes, engine: EmbeddedEngine, place: ListeningPlace) -> None:
    """Serve at `place` until SIGTERM or SIGINT, or until the engine fails."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    address, port = place.listener.getsockname()[:2]
    edge = HttpEdge(routes.routes(), Access(place.key.value, (place.host, address)))
    place.listener.listen(BACKLOG)
    try:
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(edge.listen(place.listener, place.tls))
            running = group.create_task(engine.run())
            print(_ready_line(address, port, place), flush=True)
            await ended.wait()
            await engine.pause("abort")
            running.cancel()
            listening.cancel()
    finally:
        await edge.close()


def _ready_line(address: str, port: int, place: ListeningPlace) -> str:
    """Say where the server answers, and the key if nobody has it yet."""
    host = f"[{address}]" if ":" in address else address  # of IPv6
    scheme = "http" if place.tls is None else "https"
    ready = f"ready {scheme}://{host}:{port}"
    return f"{ready} with Authorization: Bearer {place.key.value}" if place.key.is_new else ready


if __name__ == "__main__":
    main()
    leave(0)
