"""The trainer's channel reads nothing of strangers, and none of them ends it."""

import asyncio
import contextlib
import os
import platform
import socket
from collections.abc import AsyncIterator

import pytest
import zmq
import zmq.asyncio
from hypothesis import given
from hypothesis import strategies as st
from zmq.utils.monitor import recv_monitor_message

from arl.launch.address import LOOPBACK, free_listener
from arl.launch.trust import RunTrust
from arl.train import channel, rank_connections
from arl.train.channel import FRAME_BYTES, Failed, Hello, frames
from arl.train.curve import encrypt_client, server_keys
from arl.train.rank_connections import RankConnections

TRUST = RunTrust("the run's key")
SECONDS = 30
HELLO = Hello("trainer", 0, platform.node(), os.getpid())
DEEP = b"\x91" * 3000  # an array in an array in an array …
NO_TEXT = b"\x82\xa4type\xa5Hello\xa4role\xa1\xff"
Peer = zmq.asyncio.Socket


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[tuple[RankConnections, zmq.asyncio.Context]]:
    connections = RankConnections(1, TRUST, LOOPBACK)
    peers = zmq.asyncio.Context()
    try:
        yield connections, peers
    finally:
        peers.destroy(linger=0)
        connections.close()


def peer(connections: RankConnections, peers: zmq.asyncio.Context, key: str | None = None) -> Peer:
    """Connect somebody; `key` encrypts the connection."""
    made = peers.socket(zmq.DEALER)
    if key is not None:
        encrypt_client(made, key)
    made.connect(connections.environment[channel.ADDRESS])
    return made


async def admitted(connections: RankConnections, rank: Peer) -> None:
    await rank.send_multipart([TRUST.key.encode(), channel.encode(HELLO)])
    assert await asyncio.wait_for(connections.receive(), SECONDS) == (HELLO, HELLO)


@given(st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=4), max_size=20))
def test_whatever_a_stranger_sends_the_next_rank_is_admitted(messages: list[list[bytes]]) -> None:
    ends = [[NO_TEXT], [b"guess", DEEP], [b"", NO_TEXT], [TRUST.key.encode()], [b"guess", channel.encode(HELLO)]]

    async def scene() -> None:
        async with listening() as (connections, peers):
            stranger = peer(connections, peers)
            waiting = asyncio.create_task(connections.receive())
            for message in (*messages, *ends):
                await stranger.send_multipart(message)
                answer = await asyncio.wait_for(stranger.recv(), SECONDS)
                assert isinstance(channel.decode_to_rank(answer), channel.Refused)
            assert not waiting.done()
            waiting.cancel()
            await admitted(connections, peer(connections, peers))

    asyncio.run(scene())


def test_a_stranger_who_reads_no_answer_does_not_hold_up_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
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
            stranger.connect(connections.environment[channel.ADDRESS])
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
    monkeypatch.setattr(rank_connections, "is_encrypted", lambda address: True)


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
