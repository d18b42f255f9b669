"""Connect to the embedded server without showing the key: few such connections are held, and none of them for long."""

import asyncio
import contextlib
import resource
import socket
import ssl
from pathlib import Path
from typing import Any, cast

import aiohttp
import psutil
import pytest

from arl.engine.embedded import door
from arl.engine.embedded.batching import EmbeddedEngine
from arl.engine.embedded.routes import EngineRoutes
from arl.engine.http.connection import Http
from arl.launch.address import LOOPBACK
from arl.launch.store_tunnel import StreamPair
from arl.launch.tls import CERTIFICATE, client_context, server_context
from arl.launch.trust import write_certificate
from tests.engine.conftest import KEY, Weights, start_server, within
from tests.engine.served import listening
from tests.engine.test_server import SAMPLING, post

SECONDS = 30.0
HEADERS = {"Authorization": f"Bearer {KEY}"}
HALF = b"GET /health HTTP/1.1\r\nHost: "
KEYED = f"GET /health HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode()
WRONG = b"GET /health HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong\r\n\r\n"
NO_HTTP = b"\x16\x03\x01 hello\r\n\r\n"
UNREAD = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"


def routes() -> EngineRoutes:
    """Return routes that need no engine to say that they live."""
    return EngineRoutes(cast(EmbeddedEngine, None), "model", (), broadcast_seconds=1.0)


async def connected(port: int, says: bytes = b"", tls: ssl.SSLContext | None = None) -> StreamPair:
    """Connect, and say something."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port, ssl=tls)
    writer.write(says)
    await writer.drain()
    return StreamPair(reader, writer)


async def heard(connection: StreamPair) -> bytes:
    """Return all that the server says until it closes the connection."""
    pieces = []
    with contextlib.suppress(ConnectionError):  # it is closed without a farewell
        while piece := await connection.reader.read(1 << 16):
            pieces.append(piece)
    return b"".join(pieces)


def test_strangers_who_say_nothing_leave_descriptors_to_who_knows_the_key(old: Weights, tmp_path: Path) -> None:
    own = start_server(old.path, tmp_path / "log")
    _, most = psutil.Process(own.process.pid).rlimit(psutil.RLIMIT_NOFILE)
    psutil.Process(own.process.pid).rlimit(psutil.RLIMIT_NOFILE, (128, most))
    port = int(own.url.rpartition(":")[2])
    with contextlib.ExitStack() as strangers:
        for number in range(150):
            stranger = strangers.enter_context(socket.create_connection((LOOPBACK, port), SECONDS))
            if number % 2:
                stranger.sendall(HALF)
        body = {"input_ids": [1], "sampling_params": SAMPLING}
        assert within(lambda: post(own, "/generate", body), SECONDS)[0] == 200
    assert own.end() == 0
    assert "out of system resource" not in (tmp_path / "log").read_text()


def test_a_connection_that_does_not_show_the_key_in_time_is_closed_and_one_that_has_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(door, "HELLO_SECONDS", 0.5)

    async def scenario() -> None:
        async with listening(routes()) as port:
            own = await connected(port, KEYED)
            assert (await own.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            strangers = [await connected(port, says) for says in (b"", HALF, WRONG, NO_HTTP, UNREAD)]
            nothing, half, wrong, no_http, unread = [await heard(stranger) for stranger in strangers]
            assert (nothing, half) == (b"", b"")
            assert wrong.startswith(b"HTTP/1.1 401 ")
            assert b"Connection: close" in wrong
            assert no_http.startswith(b"HTTP/1.0 400 ")
            assert unread.startswith(b"HTTP/1.1 401 ")
            own.writer.write(KEYED)  # the connection is older than those that were closed
            assert (await own.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")

    within(scenario, SECONDS)


def test_a_handshake_that_is_not_completed_in_time_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "HELLO_SECONDS", 0.5)
    write_certificate(tmp_path)

    async def scenario() -> None:
        async with listening(routes(), server_context(tmp_path)) as port:
            silent = await connected(port)
            refused = await connected(port, WRONG, client_context(tmp_path / CERTIFICATE))
            assert await heard(silent) == b""
            assert (await heard(refused)).startswith(b"HTTP/1.1 401 ")

    within(scenario, SECONDS)


def test_the_oldest_gives_way_to_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MOST_UNKNOWN", 4)
    monkeypatch.setattr(door, "GIVE_WAY_SECONDS", 0.0)
    monkeypatch.setattr(door, "HELLO_SECONDS", 10 * SECONDS)

    async def scenario() -> None:
        async with listening(routes()) as port:
            strangers = [await connected(port) for _ in range(12)]
            for stranger in strangers[:8]:
                assert await heard(stranger) == b""
            assert [stranger.reader.at_eof() for stranger in strangers[8:]] == [False] * 4
            async with aiohttp.ClientSession(f"http://{LOOPBACK}:{port}", headers=HEADERS) as own:
                assert (await own.get("/health")).status == 200
            assert await heard(strangers[8]) == b""
        assert await heard(strangers[11]) == b"", "the end of the server is that of all"

    within(scenario, SECONDS)


def test_none_of_many_who_know_the_key_and_come_at_once_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "MOST_UNKNOWN", 1)
    monkeypatch.setattr(door, "GIVE_WAY_SECONDS", 10 * SECONDS)
    write_certificate(tmp_path)

    async def scenario() -> None:
        async with listening(routes(), server_context(tmp_path)) as port:
            http = Http(f"https://{LOOPBACK}:{port}", KEY, SECONDS, str(tmp_path / CERTIFICATE))
            try:
                answers = await asyncio.gather(*(http.ask("/health") for _ in range(40)))
            finally:
                await http.close()
            assert {status for status, _ in answers} == {200}

    within(scenario, SECONDS)


def test_a_process_with_few_descriptors_holds_fewer_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    def limited(limit: int) -> Any:
        return lambda _: (limit, resource.RLIM_INFINITY)

    for limit, most in ((resource.RLIM_INFINITY, 128), (1024, 128), (128, 32), (3, 1)):
        monkeypatch.setattr(resource, "getrlimit", limited(limit))
        assert door._most_unknown() == most


def test_a_head_that_cannot_be_read_is_answered_and_its_connection_closed() -> None:
    """aiohttp raises on the first, outside of what it answers; the second says that its body comes in chunks."""
    named = b"GET http://xn--a/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    coded = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n"
    coded += f"Authorization: Bearer {KEY}\r\nContent-Type: application/json\r\n\r\n0\r\n\r\n".encode()

    async def scenario() -> None:
        async with listening(routes()) as port:
            stranger = await connected(port, named)
            assert b" 401 " in await heard(stranger)
            keyed = await connected(port, coded)
            assert b" 411 " in await keyed.reader.readline()

    within(scenario)
