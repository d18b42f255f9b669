"""Bodies of requests are bounded together: those that never end hold little, and an honest small one never waits."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple, cast

import aiohttp
import pytest
from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol
from hypothesis import given
from hypothesis import strategies as st

from arl.clock import now, run
from arl.engine.embedded import body_room
from arl.engine.embedded.access import RequestRefused
from arl.engine.embedded.batching import EmbeddedEngine
from arl.engine.embedded.body_room import BODY_SECONDS, GIVE_WAY_SECONDS, MOST_CHUNKS, MOST_PARTS, MOST_VALUES, BodyRoom
from arl.engine.embedded.routes import EngineRoutes
from arl.engine.http import wire
from arl.launch.address import LOOPBACK
from tests.engine.conftest import KEY, VOCAB, ServerProcess, within
from tests.engine.served import listening
from tests.engine.test_server import SAMPLING, post

SECONDS = 30.0
FREE = 8
LARGEST = 64
HELD = 2 * LARGEST
PIECE = 4
HEAD = f"POST /pause_generation HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
JSON = "Content-Type: application/json\r\n"


@contextlib.contextmanager
def small_limits(held: int = HELD) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "MOST_BYTES", LARGEST)
        patch.setattr(body_room, "FREE_BYTES", FREE)
        patch.setattr(body_room, "MOST_HELD", held)
        yield


class Sent(NamedTuple):
    """Describe a body that somebody sends."""

    size: int
    is_declared: bool
    is_complete: bool


class Held:
    """Count what has been read of all bodies that are not answered yet."""

    def __init__(self) -> None:
        self.taken: dict[int, int] = {}

    def add(self, body: int, count: int) -> None:
        self.taken[body] += count
        large = sum(max(0, taken - FREE - PIECE) for taken in self.taken.values())
        assert large <= HELD


class CountedReader(StreamReader):
    """Count what is read of one body."""

    def __init__(self, body: int, held: Held) -> None:
        loop = asyncio.get_running_loop()
        protocol = BaseProtocol(loop)
        protocol.connection_made(asyncio.Transport())
        super().__init__(protocol, 1 << 16, loop=loop)
        self._body = body
        self._held = held

    async def readchunk(self) -> tuple[bytes, bool]:
        piece = await self.read(PIECE)
        self._held.add(self._body, len(piece))
        return piece, False


async def outcome(room: BodyRoom, number: int, sent: Sent, held: Held) -> tuple[int, float]:
    """Send a body, and return its status and when it was there; 200: it arrived as it was sent."""
    reader = CountedReader(number, held)
    data = bytes(number for _ in range(sent.size))
    reader.feed_data(data)
    if sent.is_complete:
        reader.feed_eof()
    held.taken[number] = 0
    begin = now()
    try:
        async with room.receive(reader, sent.size + (not sent.is_complete) if sent.is_declared else None) as got:
            assert sent.is_complete
            assert got == data
            return 200, now() - begin
    except RequestRefused as refused:
        return refused.refusal.status, now() - begin
    finally:
        del held.taken[number]


bodies = st.builds(Sent, st.integers(0, LARGEST - 1), st.booleans(), st.booleans())


@given(st.lists(bodies, max_size=30))
def test_whatever_is_sent_little_is_held_and_each_body_is_answered(sent: list[Sent]) -> None:
    async def scenario() -> list[tuple[int, float]]:
        room = BodyRoom()
        held = Held()
        return await asyncio.gather(*(outcome(room, number, one, held) for number, one in enumerate(sent)))

    with small_limits():
        found = run(scenario, virtual=True)
    for body, (status, seconds) in zip(sent, found, strict=True):
        assert seconds <= BODY_SECONDS
        if body.is_complete and body.size <= FREE:
            assert (status, seconds) == (200, 0.0)
        elif body.is_complete:
            assert status == 200 or (status, seconds) == (503, BODY_SECONDS)
        else:
            assert status == 408 or (status, seconds) == (503, BODY_SECONDS)


def behind(num_hostile: int) -> list[tuple[int, float]]:
    """Return what becomes of large bodies that do not end, and of a whole one behind them in line, the last."""

    async def scenario() -> list[tuple[int, float]]:
        room = BodyRoom()
        held = Held()
        sent = [Sent(LARGEST - 1, True, False)] * num_hostile + [Sent(LARGEST - 1, True, True)]
        return await asyncio.gather(*(outcome(room, number, one, held) for number, one in enumerate(sent)))

    with small_limits():
        return run(scenario, virtual=True)


@given(st.integers(0, 11))
def test_a_large_body_gets_the_room_of_those_that_do_not_end(num_hostile: int) -> None:
    *hostile, (status, seconds) = behind(num_hostile)
    turns = num_hostile * LARGEST // HELD  # of those ahead that have room at the same time
    assert status == 200
    assert seconds == pytest.approx(turns * GIVE_WAY_SECONDS)
    assert all(refusal == 408 for refusal, _ in hostile)


@given(st.integers(14, 20))
def test_a_large_body_that_too_many_are_ahead_of_is_told_so(num_hostile: int) -> None:
    assert behind(num_hostile)[-1] == (503, BODY_SECONDS)


def asking(header: str, begin: bytes) -> bytes:
    return (HEAD + JSON + header + "\r\n").encode() + begin


async def connected(port: int, says: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(says)
    await writer.drain()
    return reader, writer


def test_bodies_that_never_end_leave_the_server_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too large gets a 413 before any of it is read, and those that do not end a 408, or a 503 without room."""
    monkeypatch.setattr(body_room, "BODY_SECONDS", 1.0)

    async def scenario() -> None:
        async with listening(EngineRoutes(cast(EmbeddedEngine, None), "model", (), 1.0)) as port:
            unfinished = (
                asking(f"Content-Length: {LARGEST}\r\n", b" " * (LARGEST - 1)),
                asking("Transfer-Encoding: chunked\r\n", b"20\r\n" + b" " * 32),
            )
            hostile = [await connected(port, unfinished[number % 2]) for number in range(10)]
            large = await connected(port, asking(f"Content-Length: {LARGEST + 1}\r\n", b""))
            assert b" 413 " in await large[0].readline()
            for header, data in (
                ("Content-Length: 2\r\n", b"[]"),
                ("Transfer-Encoding: chunked\r\n", b"2\r\n[]\r\n0\r\n\r\n"),
            ):
                small = await connected(port, asking(header, data))
                assert b" 400 " in await small[0].readline()  # it was decoded
                small[1].close()
            assert not any(reader.at_eof() or reader._buffer for reader, _ in hostile)  # type: ignore[attr-defined]
            statuses = [(await reader.readline()).split()[1] for reader, _ in hostile]
            assert set(statuses) <= {b"408", b"503"}
            for _, writer in (*hostile, large):
                writer.close()

    with small_limits():
        within(scenario, SECONDS)


@pytest.mark.parametrize("num_bytes", [1, 7])
def test_a_body_in_too_many_chunks_is_refused(server: ServerProcess, num_bytes: int) -> None:
    """Each takes the server as long as a kilobyte, and may hold a byte."""
    chunk = b"%x\r\n%b\r\n" % (num_bytes, b" " * num_bytes)
    data = asking("Transfer-Encoding: chunked\r\n", chunk * (MOST_CHUNKS + 1))

    async def scenario() -> None:
        reader, writer = await connected(int(server.url.rpartition(":")[2]), data)
        answer = await reader.readuntil(b"larger ones")
        assert b" 413 " in answer
        assert f"a body may come in {MOST_CHUNKS} chunks".encode() in answer
        writer.close()

    within(scenario, SECONDS)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"input_ids":[' + b"1," * MOST_VALUES + b"1,1]}", "values, and 2097152 ids"),
        (b'{"input_ids":[' + b"[1]," * MOST_PARTS + b"[1]]}", "lists and objects"),
        (b"[" * (MOST_PARTS + 1), "lists and objects"),
        (b'{"rid":"' + b"r" * wire.MOST_BYTES + b'"}', f"{wire.MOST_BYTES} bytes"),
    ],
    ids=["ids", "lists", "nesting", "bytes"],
)
@pytest.mark.parametrize("is_chunked", [False, True], ids=["declared", "in chunks"])
def test_what_would_take_much_to_decode_is_refused_before_that(
    server: ServerProcess, body: bytes, reason: str, is_chunked: bool
) -> None:
    async def scenario() -> None:
        status, answer = await send(server, body, is_chunked)
        assert status == 413
        assert reason in answer

    within(scenario, SECONDS)


async def send(server: ServerProcess, body: bytes, is_chunked: bool) -> tuple[int, str]:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 1 << 16):
            yield body[start : start + (1 << 16)]

    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(server.url + "/generate", data=pieces() if is_chunked else body) as answer,
    ):
        return answer.status, await answer.text()


def test_a_batch_of_as_many_ids_as_fit_is_taken_apart_and_each_more_is_refused(server: ServerProcess) -> None:
    """It is the client's largest, and every request of it is too long for this model."""
    half = wire.MOST_TOKENS // 2
    for extra, reason in ((0, "exceed the model's context"), (1, f"{wire.MOST_TOKENS + 1} input_ids in one POST")):
        body = {"input_ids": [[VOCAB - 1] * half, [VOCAB - 1] * (half + extra)], "sampling_params": SAMPLING}
        status, answer = within(lambda body=body: post(server, "/generate", body), SECONDS)  # type: ignore[misc]
        assert status == 400
        assert reason in answer["error"]["message"]
