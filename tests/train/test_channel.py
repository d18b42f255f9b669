"""The trainer's channel takes nothing of strangers, answers by id, and names whoever ends the run."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable

import pytest
import zmq
import zmq.asyncio
from hypothesis import given
from hypothesis import strategies as st
from zmq.utils.monitor import recv_monitor_message

from arl.errors import ProcessDied, RunError, TrainerError
from arl.launch.child import RUN_KEY
from arl.launch.network import LOOPBACK
from arl.launch.run_secrets import RunSecrets
from arl.train import channel, link, rank_watch
from arl.train.channel import MAIN, Failed, Hello, Leave, RankAnswer, RankRequest, Send
from arl.train.link import Link, RankConnections, server_keys, show_key
from arl.train.rank_watch import RankWatch

TRUST = RunSecrets("the run's key")
SECONDS = 30
HELLO = Hello(0, "node-3", os.getpid())
MECHANISMS = [b"", b"NULL", b"PLAIN", b"CURVE"]
Peer = zmq.asyncio.Socket


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[tuple[RankConnections, zmq.asyncio.Context]]:
    connections = RankConnections(TRUST, LOOPBACK)
    admitting = asyncio.create_task(connections.admit())
    peers = zmq.asyncio.Context()
    try:
        yield connections, peers
        assert not admitting.done()
    finally:
        admitting.cancel()
        peers.destroy(linger=0)
        connections.close()


def peer(connections: RankConnections, peers: zmq.asyncio.Context, key: str = TRUST.key) -> Peer:
    """Connect somebody who knows `key`."""
    made = peers.socket(zmq.DEALER)
    address = connections.address
    show_key(made, address, key)
    made.connect(address)
    return made


async def admitted(connections: RankConnections, rank: Peer, hello: Hello = HELLO) -> None:
    await rank.send(channel.encode(hello))
    assert await asyncio.wait_for(connections.receive(), SECONDS) == (hello.rank, hello)


def greeting(mechanism: bytes) -> bytes:
    """Begin a connection as ZeroMQ does."""
    return b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01" + mechanism.ljust(20, b"\0") + b"\0" * 32


def send(connections: RankConnections, pieces: Iterable[bytes]) -> None:
    """Send bytes to the port, as anybody can."""
    _, _, port = connections.address.rpartition(":")
    with socket.create_connection((LOOPBACK, int(port)), SECONDS) as anybody, contextlib.suppress(ConnectionError):
        for piece in pieces:
            anybody.sendall(piece)


@given(st.sampled_from(MECHANISMS), st.lists(st.binary(max_size=100), max_size=8))
def test_whatever_a_stranger_sends_the_next_rank_is_admitted(mechanism: bytes, pieces: list[bytes]) -> None:
    begin = [greeting(mechanism)] if mechanism else []
    hello = channel.encode(HELLO)

    async def scene() -> None:
        async with listening() as (connections, peers):
            waiting = asyncio.create_task(connections.receive())
            await asyncio.to_thread(send, connections, [*begin, *pieces, b"\0" + bytes([len(hello)]) + hello])
            await peer(connections, peers).send(hello)
            assert await asyncio.wait_for(waiting, SECONDS) == (0, HELLO)

    asyncio.run(scene())


async def _event(watched: Peer, event: int) -> None:
    """Wait for something to happen to a connection."""
    await recv_monitor_message(watched.get_monitor_socket(event))


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_only_clients_with_the_key_of_the_run_get_through(is_encrypted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "is_encrypted", lambda address: is_encrypted)

    async def scene() -> None:
        async with listening() as (connections, peers):
            await admitted(connections, peer(connections, peers))
            waiting = asyncio.create_task(connections.receive())
            old = peer(connections, peers, "the key of another run")
            await asyncio.wait_for(_event(old, zmq.EVENT_DISCONNECTED), SECONDS)
            if is_encrypted:
                knows_the_server = peers.socket(zmq.DEALER)
                knows_the_server.curve_serverkey = server_keys(TRUST.key).public
                knows_the_server.curve_publickey, knows_the_server.curve_secretkey = zmq.curve_keypair()
                refused = asyncio.create_task(_event(knows_the_server, zmq.EVENT_HANDSHAKE_FAILED_AUTH))
                await asyncio.sleep(0)  # it watches from here on
                knows_the_server.connect(connections.address)
                await asyncio.wait_for(refused, SECONDS)
            assert not waiting.done(), "nothing of them was delivered"
            waiting.cancel()

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([channel.encode(HELLO), b"\x91" * 3000], r"^trainer rank 0 \(pid \d+ on node-3\) has sent what"),
        ([b"\xc0"], r"^a process at 127\.0\.0\.1 that knows the run key has sent what .*same version of"),
        ([channel.encode(RankAnswer(1))], "has sent RankAnswer without a Hello: the network has cut its connection"),
    ],
)
def test_what_is_no_message_of_a_rank_ends_the_run_by_its_name(messages: list[bytes], said: str) -> None:
    async def scene() -> None:
        async with listening() as (connections, peers):
            rank = peer(connections, peers)
            for message in messages:
                await rank.send(message)
            for _ in messages[1:]:
                await asyncio.wait_for(connections.receive(), SECONDS)
            with pytest.raises(TrainerError, match=said):
                await asyncio.wait_for(connections.receive(), SECONDS)

    asyncio.run(scene())


@contextlib.asynccontextmanager
async def linked(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[RankConnections, Link]]:
    """Connect the link of a rank, which has said Hello."""
    async with listening() as (connections, _):
        for name, value in {"RANK": "0", RUN_KEY: TRUST.key, channel.ADDRESS: connections.address}.items():
            monkeypatch.setenv(name, value)
        link = Link()
        await asyncio.wait_for(connections.receive(), SECONDS)
        yield connections, link
        await asyncio.to_thread(link.close)


def test_requests_are_answered_by_id_and_those_to_a_thread_that_has_ended_with_its_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        async with linked(monkeypatch) as (connections, link):
            link.open("group")
            for number, to in enumerate(("group", MAIN, "group", "group")):
                await connections.send(0, RankRequest(number, to, Send(number)))
            first, second = [await asyncio.to_thread(link.receive, "group", SECONDS) for _ in range(2)]
            main = await asyncio.to_thread(link.receive, MAIN, SECONDS)
            assert (first.id, main.id, second.id) == (0, 1, 2)
            link.answer(second)
            link.end("group", "it broke")  # request 3 was never received
            await connections.send(0, RankRequest(4, "group", Leave()))
            await connections.send(0, RankRequest(5, "another group", Leave()))
            answers = [(await asyncio.wait_for(connections.receive(), SECONDS))[1] for _ in range(4)]
            broken = [RankAnswer(number, error="it broke") for number in (3, 4)]
            assert answers == [RankAnswer(2), *broken, RankAnswer(5, error="there is no thread another group")]

    asyncio.run(scene())


def test_bytes_of_the_controller_that_are_no_request_end_the_wait_of_the_main_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        async with linked(monkeypatch) as (connections, link):
            await connections.send(0, Hello(0, "node-3", 1))  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="Object missing required field"):
                await asyncio.to_thread(link.receive, MAIN, SECONDS)

    asyncio.run(scene())


class FakeProcess:
    """A Process that ends when the test says so."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.pid = 17
        self.exit_code: int | None = None
        self._ended = asyncio.Event()

    def end(self, exit_code: int) -> None:
        self.exit_code = exit_code
        self._ended.set()

    async def ended(self) -> str:
        await self._ended.wait()
        return f"{self.role} ended with {self.exit_code}"

    async def died(self) -> ProcessDied:
        return ProcessDied(await self.ended())

    def log_tail(self) -> str:
        return "The end of its log."


Scene = Callable[[RankWatch, FakeProcess, FakeProcess], None]
TRACE = Failed("trainer", 5, "a trace", said="its message", is_of_disk=False)


def killed_then_traceback(watch: RankWatch, first: FakeProcess, second: FakeProcess) -> None:
    second.end(-9)
    watch.raised(0, TRACE)


def traceback_then_killed(watch: RankWatch, first: FakeProcess, second: FakeProcess) -> None:
    watch.raised(0, TRACE)
    first.end(1)
    asyncio.get_running_loop().call_later(0.01, second.end, -9)


def exit_then_traceback(watch: RankWatch, first: FakeProcess, second: FakeProcess) -> None:
    first.end(1)
    asyncio.get_running_loop().call_later(0.01, watch.raised, 0, TRACE)


def exit_alone(watch: RankWatch, first: FakeProcess, second: FakeProcess) -> None:
    first.end(0)


@pytest.mark.parametrize(
    ("scene", "cause"),
    [
        (killed_then_traceback, "trainer-1 ended with -9"),
        (traceback_then_killed, "trainer-1 ended with -9"),
        (exit_then_traceback, "trainer rank 0 (pid PID on node-3) at version 5: its message"),
        (exit_alone, "trainer-0 ended with 0"),
    ],
)
def test_a_killed_rank_is_the_cause_else_the_first_traceback_else_the_exit(
    scene: Scene, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_watch, "SETTLE_SECONDS", 0.5)

    async def main() -> RunError:
        watch = RankWatch({0: HELLO})
        first, second = FakeProcess("trainer-0"), FakeProcess("trainer-1")
        watch.add(0, first)  # type: ignore[arg-type]
        watch.add(1, second)  # type: ignore[arg-type]
        scene(watch, first, second)
        error = await watch.failure()
        watch.close()
        return error

    assert str(asyncio.run(main())) == cause.replace("PID", str(os.getpid()))
