"""The trainer's channel takes nothing of strangers, none of them ends it, and it forgets who has left."""

import asyncio
import contextlib
import os
import platform
import re
import socket
from collections.abc import AsyncIterator, Iterable

import psutil
import pytest
import zmq
import zmq.asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from zmq.utils.monitor import recv_monitor_message

from arl.errors import TrainerError
from arl.launch.address import LOOPBACK, free_listener
from arl.launch.trust import RunTrust
from arl.train import channel, channel_access, rank_connections
from arl.train.channel import FRAME_BYTES, Failed, Hello, Left, Refused, Saved, frames
from arl.train.channel_access import server_keys, show_key
from arl.train.rank_connections import MOST_FRAMES, RankConnections
from tests.train.resetting_proxy import ResettingProxy

TRUST = RunTrust("the run's key")
SECONDS = 30
STRANGERS = 3000  # more ends of connections than ZeroMQ keeps for whoever watches them
HELLO = Hello("trainer", 0, platform.node(), os.getpid())
DEEP = b"\x91" * 3000  # an array in an array in an array …
NO_TEXT = b"\x82\xa4type\xa5Hello\xa4role\xa1\xff"
Peer = zmq.asyncio.Socket


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[tuple[RankConnections, zmq.asyncio.Context]]:
    connections = RankConnections(1, TRUST, LOOPBACK)
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
    address = connections.environment[channel.ADDRESS]
    show_key(made, address, key)
    made.connect(address)
    return made


async def admitted(connections: RankConnections, rank: Peer, hello: Hello = HELLO) -> None:
    await rank.send_multipart([TRUST.key.encode(), channel.encode(hello)])
    assert await asyncio.wait_for(connections.receive(), SECONDS) == (hello, hello)


def greeting(mechanism: bytes) -> bytes:
    """Begin a connection as ZeroMQ does."""
    return b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01" + mechanism.ljust(20, b"\0") + b"\0" * 32


def send(connections: RankConnections, pieces: Iterable[bytes], waits: bool) -> int:
    """Send bytes to the port, as anybody can, and return how many it took.

    Args:
        waits: for the end of the connection, by the other side.
    """
    sent = 0
    _, _, port = connections.environment[channel.ADDRESS].rpartition(":")
    with socket.create_connection((LOOPBACK, int(port)), SECONDS) as anybody, contextlib.suppress(ConnectionError):
        for piece in pieces:
            anybody.sendall(piece)
            sent += len(piece)
        while waits and anybody.recv(4096):
            pass
    return sent


MECHANISMS = [b"", b"NULL", b"PLAIN", b"CURVE"]


@given(st.sampled_from(MECHANISMS), st.lists(st.binary(max_size=100), max_size=8))
def test_whatever_a_stranger_sends_the_next_rank_is_admitted(mechanism: bytes, pieces: list[bytes]) -> None:
    begin = [greeting(mechanism)] if mechanism else []
    hello = channel.encode(HELLO)
    ends = [b"\0" + bytes([len(data) % 256]) + data for data in (NO_TEXT, DEEP, hello)]

    async def scene() -> None:
        async with listening() as (connections, peers):
            waiting = asyncio.create_task(connections.receive())
            await asyncio.to_thread(send, connections, [*begin, *pieces, *ends], waits=False)
            rank = peer(connections, peers)
            await rank.send_multipart([TRUST.key.encode(), hello])
            assert await asyncio.wait_for(waiting, SECONDS) == (HELLO, HELLO)

    asyncio.run(scene())


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("address", ["loopback", "network"])
def test_a_stranger_who_sends_a_message_without_end_is_disconnected_and_nothing_of_it_is_held(
    mechanism: bytes, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_access, "is_encrypted", lambda _: address == "network")
    frame = b"\x01\x01x"  # another one follows
    number = 3_000_000
    piece = frame * 10_000
    pieces = [greeting(mechanism), *[piece] * (number // 10_000)]

    async def scene() -> None:
        async with listening() as (connections, _):
            waiting = asyncio.create_task(connections.receive())
            before = psutil.Process().memory_info().rss
            took = await asyncio.to_thread(send, connections, pieces, waits=True)
            assert took < number * len(frame), "the connection was closed while it sent"
            assert psutil.Process().memory_info().rss - before < 32e6
            assert not waiting.done()
            waiting.cancel()

    asyncio.run(scene())


def test_a_rank_that_sends_a_message_of_too_many_frames_is_named() -> None:
    async def scene() -> None:
        async with listening() as (connections, peers):
            rank = peer(connections, peers)
            await admitted(connections, rank)
            await rank.send_multipart([b"x"] * (MOST_FRAMES + 1))
            with pytest.raises(TrainerError, match=rf"rank 0 \(pid {os.getpid()} on .*more than {MOST_FRAMES} frames"):
                await asyncio.wait_for(connections.receive(), SECONDS)

    asyncio.run(scene())


@settings(max_examples=25)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=25))
def test_after_any_series_of_threads_that_come_and_go_those_that_are_left_are_remembered(
    events: list[tuple[bool, int]],
) -> None:
    async def scene() -> None:
        async with listening() as (connections, peers):
            live: dict[str, Peer] = {}
            for number, (comes, which) in enumerate(events):
                if comes or not live:
                    thread = f"group {number}"
                    live[thread] = peer(connections, peers)
                    await admitted(connections, live[thread], Hello(thread, 0, "node", 1))
                else:
                    thread = list(live)[which % len(live)]
                    await live.pop(thread).send(channel.encode(Left()))
                    sender, message = await asyncio.wait_for(connections.receive(), SECONDS)
                    assert (sender.role, message) == (thread, Left())
                    with pytest.raises(ConnectionError, match="has not connected"):
                        await connections.send(thread, 0, Saved(1))
                assert {hello.role for hello in connections.connected} == live.keys()
            assert len(connections.connected) == len(live)

    asyncio.run(scene())


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_connections, "LEFT_SECONDS", 0.2)
    monkeypatch.setattr(rank_connections, "DEATH_SECONDS", 0.2)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("leaves", [True, False])
def test_a_connection_that_the_network_resets_is_named_and_one_that_is_left_is_not(leaves: bool) -> None:
    async def scene() -> None:
        async with listening() as (connections, peers), ResettingProxy(connections.environment) as proxy:
            address = proxy.environment[channel.ADDRESS]
            rank = peers.socket(zmq.DEALER)
            show_key(rank, address, TRUST.key)
            rank.connect(address)
            await admitted(connections, rank)
            cut = asyncio.create_task(connections.cut())
            if leaves:
                await rank.send(channel.encode(Left()))
                await asyncio.wait_for(connections.receive(), SECONDS)
            proxy.reset()
            if leaves:
                await asyncio.wait({cut}, timeout=1.0)
                assert not cut.done()
                cut.cancel()
                return
            words = rf"the network has cut the connection of trainer of trainer rank 0 \(pid {os.getpid()} on "
            assert re.match(words, str(await asyncio.wait_for(cut, SECONDS)))
            await rank.send(channel.encode(Saved(1)))  # ZeroMQ has connected it again
            receiving = asyncio.create_task(connections.receive())
            answer = channel.decode_to_rank(await asyncio.wait_for(rank.recv(), SECONDS))
            assert isinstance(answer, Refused)
            assert "the network has cut the connection" in answer.reason
            receiving.cancel()

    asyncio.run(scene())


@pytest.mark.parametrize("is_stopping", [False, True])
def test_thousands_of_strangers_who_come_and_go_do_not_hold_up_a_rank(is_stopping: bool) -> None:
    async def main() -> None:
        async with listening() as (connections, peers):
            watching = asyncio.create_task(connections.ignore_ends() if is_stopping else connections.cut())
            await asyncio.to_thread(lambda: [send(connections, [b"x"], waits=False) for _ in range(STRANGERS)])
            await admitted(connections, peer(connections, peers))
            assert not watching.done()
            watching.cancel()

    asyncio.run(main())


def test_one_who_knows_the_key_and_reads_no_answer_does_not_hold_up_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_small_buffers(host: str) -> socket.socket:
        listener = free_listener(host)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # its connections inherit it
        return listener

    async def flood(stranger: Peer) -> None:
        for _ in range(8000):  # more answers than all buffers on the way hold
            await stranger.send(b"x")

    async def scene() -> None:
        async with listening() as (connections, peers):
            stranger = peers.socket(zmq.DEALER)
            stranger.setsockopt(zmq.RCVHWM, 1)
            stranger.setsockopt(zmq.RCVBUF, 4096)
            stranger.setsockopt(zmq.SNDHWM, 10)
            address = connections.environment[channel.ADDRESS]
            show_key(stranger, address, TRUST.key)
            stranger.connect(address)
            waiting = asyncio.create_task(connections.receive())
            await asyncio.wait_for(flood(stranger), SECONDS)
            waiting.cancel()
            await admitted(connections, peer(connections, peers))

    monkeypatch.setattr(rank_connections, "free_listener", with_small_buffers)
    asyncio.run(scene())


def test_a_frame_that_is_too_long_ends_its_own_connection_and_ranks_send_in_shorter_ones() -> None:
    long = Failed(3, "x" * (2 * FRAME_BYTES + 5))
    assert [len(frame) for frame in frames(long)][:2] == [FRAME_BYTES, FRAME_BYTES]

    async def scene() -> None:
        async with listening() as (connections, peers):
            rank = peer(connections, peers)
            await admitted(connections, rank)
            stranger = peer(connections, peers)
            ended = asyncio.create_task(_event(stranger, zmq.EVENT_DISCONNECTED))
            await asyncio.sleep(0)  # it watches from here on
            await stranger.send(b"x" * (2 * FRAME_BYTES))
            await asyncio.wait_for(ended, SECONDS)
            await rank.send_multipart(frames(long))
            assert await asyncio.wait_for(connections.receive(), SECONDS) == (HELLO, long)

    asyncio.run(scene())


async def _event(watched: Peer, event: int) -> None:
    """Wait for something to happen to a connection."""
    monitor = watched.get_monitor_socket(event)
    await recv_monitor_message(monitor)


@pytest.fixture
def encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encrypt loopback as if it were a network."""
    monkeypatch.setattr(channel_access, "is_encrypted", lambda address: True)


@pytest.mark.usefixtures("encrypted")
def test_beyond_loopback_only_clients_with_keys_of_the_run_get_through() -> None:
    async def scene() -> None:
        async with listening() as (connections, peers):
            await admitted(connections, peer(connections, peers, TRUST.key))
            waiting = asyncio.create_task(connections.receive())
            old = peer(connections, peers, "the key of another run")
            await asyncio.wait_for(_event(old, zmq.EVENT_DISCONNECTED), SECONDS)
            knows_the_server = peers.socket(zmq.DEALER)
            public, secret = zmq.curve_keypair()
            knows_the_server.curve_serverkey = server_keys(TRUST.key).public
            knows_the_server.curve_publickey = public
            knows_the_server.curve_secretkey = secret
            refused = _event(knows_the_server, zmq.EVENT_HANDSHAKE_FAILED_AUTH)
            watching = asyncio.create_task(refused)
            await asyncio.sleep(0)
            knows_the_server.connect(connections.environment[channel.ADDRESS])
            await asyncio.wait_for(watching, SECONDS)
            assert not waiting.done(), "nothing of them was delivered"
            waiting.cancel()

    asyncio.run(scene())
