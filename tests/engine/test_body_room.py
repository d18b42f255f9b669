"""Bodies of requests are bounded together: those that never end hold little, and an honest small one never waits."""

import asyncio
import contextlib
from collections.abc import Iterator
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
from arl.engine.embedded.body_room import BODY_SECONDS, GIVE_WAY_SECONDS, MOST_PARTS, MOST_VALUES, BodyRoom
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

    async def readany(self) -> bytes:
        piece = await self.read(PIECE)
        self._held.add(self._body, len(piece))
        return piece


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
        async with room.receive(reader, sent.size + (not sent.is_complete)) as got:
            assert sent.is_complete
            assert got == data
            return 200, now() - begin
    except RequestRefused as refused:
        return refused.refusal.status, now() - begin
    finally:
        del held.taken[number]


bodies = st.builds(Sent, st.integers(0, LARGEST - 1), st.booleans())


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
        sent = [Sent(LARGEST - 1, False)] * num_hostile + [Sent(LARGEST - 1, True)]
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
            unfinished = asking(f"Content-Length: {LARGEST}\r\n", b" " * (LARGEST - 1))
            hostile = [await connected(port, unfinished) for _ in range(10)]
            large = await connected(port, asking(f"Content-Length: {LARGEST + 1}\r\n", b""))
            assert b" 413 " in await large[0].readline()
            small = await connected(port, asking("Content-Length: 2\r\n", b"[]"))
            assert b" 400 " in await small[0].readline()  # it was decoded
            small[1].close()
            assert not any(reader.at_eof() or reader._buffer for reader, _ in hostile)  # type: ignore[attr-defined]
            statuses = [(await reader.readline()).split()[1] for reader, _ in hostile]
            assert set(statuses) <= {b"408", b"503"}
            for _, writer in (*hostile, large):
                writer.close()

    with small_limits():
        within(scenario, SECONDS)


def test_a_body_in_chunks_is_refused_by_its_header(server: ServerProcess) -> None:
    """Each chunk takes a server as long as a kilobyte, and may hold a byte."""

    async def scenario() -> None:
        data = asking("Transfer-Encoding: chunked\r\n", b"2\r\n{}\r\n0\r\n\r\n")
        reader, writer = await connected(port_of(server), data)
        assert b" 411 " in await reader.readline()
        writer.close()

    within(scenario, SECONDS)


def test_a_post_without_a_body_is_answered_again_and_again(server: ServerProcess) -> None:
    async def scenario() -> None:
        for header in ("", "Content-Length: 0\r\n") * 3:
            reader, writer = await connected(port_of(server), asking(header, b"").replace(b"pause", b"continue"))
            assert b" 200 " in await reader.readline()
            writer.close()

    within(scenario, SECONDS)


def port_of(server: ServerProcess) -> int:
    return int(server.url.rpartition(":")[2])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"input_ids":[' + b"1," * MOST_VALUES + b"1,1]}", "commas, and 2097152 ids"),
        (b'{"input_ids":[' + b"[1]," * MOST_PARTS + b"[1]]}", "opening brackets"),
        (b"[" * (MOST_PARTS + 1), "opening brackets"),
        (b'{"rid":"' + b"r" * wire.MOST_BYTES + b'"}', f"{wire.MOST_BYTES} bytes"),
    ],
    ids=["ids", "lists", "nesting", "bytes"],
)
def test_what_would_take_much_to_decode_is_refused_before_that(server: ServerProcess, body: bytes, reason: str) -> None:
    async def scenario() -> None:
        status, answer = await send(server, body)
        assert status == 413
        assert reason in answer

    within(scenario, SECONDS)


async def send(server: ServerProcess, body: bytes) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(server.url + "/generate", data=body) as answer,
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


def test_names_with_brackets_and_commas_take_nothing_from_a_batch(server: ServerProcess) -> None:
    count = wire.MOST_REQUESTS
    body = {
        "input_ids": [[1]] * count,
        "rid": [f"run[{number}]{{x,y}}" for number in range(count)],
        "sampling_params": [SAMPLING | {"max_new_tokens": 0}] * count,
    }
    status, answer = within(lambda: post(server, "/generate", body), SECONDS)
    assert status == 400
    assert "max_new_tokens 0 must be at least 1" in answer["error"]["message"]


def test_empty_names_are_replaced_by_new_ones_in_a_batch_too(server: ServerProcess) -> None:
    body = {"input_ids": [[1], [1]], "rid": ["", ""], "sampling_params": SAMPLING}
    status, answer = within(lambda: post(server, "/generate", body), SECONDS)
    assert status == 200
    assert len({one["meta_info"]["id"] for one in answer}) == 2
