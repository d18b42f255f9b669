"""The trainer's channel takes nothing of strangers, forgets who has left, and names whoever ends the run."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable

import pytest
import zmq
import zmq.asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from zmq.utils.monitor import recv_monitor_message

from arl.errors import ProcessDied, RunError, TrainerError
from arl.launch.network import LOOPBACK
from arl.launch.run_secrets import RunSecrets
from arl.train import channel, channel_access, rank_watch
from arl.train.announced_versions import AnnouncedVersions
from arl.train.channel import Claimed, Hello, Left, Saved
from arl.train.channel_access import server_keys, show_key
from arl.train.rank_connections import RankConnections
from arl.train.rank_watch import RankWatch
from arl.train.waits import ThreadAnswers, Waits, WatchedTasks
from arl.types import WeightUpdate

TRUST = RunSecrets("the run's key")
SECONDS = 30
HELLO = Hello("trainer", 0, "node-3", os.getpid())
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
    address = connections.environment[channel.ADDRESS]
    show_key(made, address, key)
    made.connect(address)
    return made


async def admitted(connections: RankConnections, rank: Peer, hello: Hello = HELLO) -> None:
    await rank.send(channel.encode(hello))
    assert await asyncio.wait_for(connections.receive(), SECONDS) == (hello, hello)


def greeting(mechanism: bytes) -> bytes:
    """Begin a connection as ZeroMQ does."""
    return b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01" + mechanism.ljust(20, b"\0") + b"\0" * 32


def send(connections: RankConnections, pieces: Iterable[bytes]) -> None:
    """Send bytes to the port, as anybody can."""
    _, _, port = connections.environment[channel.ADDRESS].rpartition(":")
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
            assert await asyncio.wait_for(waiting, SECONDS) == (HELLO, HELLO)

    asyncio.run(scene())


async def _event(watched: Peer, event: int) -> None:
    """Wait for something to happen to a connection."""
    await recv_monitor_message(watched.get_monitor_socket(event))


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_only_clients_with_the_key_of_the_run_get_through(is_encrypted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_access, "is_encrypted", lambda address: is_encrypted)

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
                knows_the_server.connect(connections.environment[channel.ADDRESS])
                await asyncio.wait_for(refused, SECONDS)
            assert not waiting.done(), "nothing of them was delivered"
            waiting.cancel()

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
                assert [hello.role for hello in connections.connected] == list(live)

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([channel.encode(HELLO), b"\x91" * 3000], r"^trainer of trainer rank 0 \(pid \d+ on node-3\) has sent what"),
        ([b"\xc0"], r"^a process at 127\.0\.0\.1 that knows the run key has sent what .*same version of"),
        ([channel.encode(Saved(1))], "has sent Saved without a Hello: the network has cut its connection"),
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


def test_an_answer_that_comes_too_late_is_not_taken_for_that_of_the_next_question() -> None:
    async def scene() -> None:
        answers = ThreadAnswers(Waits())
        answers.next("claims").cancel()
        answered = answers.next("claims")
        answers.add("claims", Claimed(5))
        assert not answered.done()
        answers.add("claims", Claimed(6))
        assert await answered == Claimed(6)
        unanswered = answers.next("claims")
        answers.left("claims")
        with pytest.raises(ConnectionError, match="claims of rank 0 has ended"):
            await unanswered

    asyncio.run(scene())


@pytest.mark.parametrize("error", [ValueError("bad"), TrainerError("rank 1 has sent what is no message")])
def test_a_task_that_listens_and_fails_ends_every_wait_by_name(error: Exception) -> None:
    async def fail() -> None:
        raise error

    async def scene() -> None:
        waits = Waits()
        tasks = WatchedTasks(waits)
        answered = waits.new()
        answered.set_result(None)
        pending = waits.new()
        tasks.begin("trainer messages", fail())
        with pytest.raises(TrainerError, match=r"rank 1 has sent|^trainer messages: .*ValueError\('bad'\)"):
            async with asyncio.timeout(SECONDS):
                await pending
        await tasks.close()

    asyncio.run(scene())


def test_a_version_is_given_to_whoever_waits_for_it_or_for_one_that_was_skipped() -> None:
    async def scene() -> None:
        versions = AnnouncedVersions({4: "model"}, 3, Waits())
        assert (await versions.at_least(4)).path == "model"
        waiting = asyncio.create_task(versions.at_least(5))
        await asyncio.sleep(0)  # it waits from here on
        versions.add(WeightUpdate(6, "/run/v6"))
        assert (await waiting).path == "/run/v6"

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
TRACE = TrainerError("rank 0 raised")


def killed_then_traceback(watch: RankWatch, first: FakeProcess, second: FakeProcess) -> None:
    second.end(-9)
    watch.raised(TRACE)


def traceback_then_killed(watch: RankWatch, first: FakeProcess, second: FakeProcess) -> None:
    watch.raised(TRACE)
    first.end(1)
    asyncio.get_running_loop().call_later(0.01, second.end, -9)


def exit_then_traceback(watch: RankWatch, first: FakeProcess, second: FakeProcess) -> None:
    first.end(1)
    asyncio.get_running_loop().call_later(0.01, watch.raised, TRACE)


def exit_alone(watch: RankWatch, first: FakeProcess, second: FakeProcess) -> None:
    first.end(0)


@pytest.mark.parametrize(
    ("scene", "cause"),
    [
        (killed_then_traceback, "trainer-1 ended with -9"),
        (traceback_then_killed, "trainer-1 ended with -9"),
        (exit_then_traceback, "rank 0 raised"),
        (exit_alone, "trainer-0 ended with 0"),
    ],
)
def test_a_killed_rank_is_the_cause_else_the_first_traceback_else_the_exit(
    scene: Scene, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_watch, "SETTLE_SECONDS", 0.5)

    async def main() -> RunError:
        watch = RankWatch()
        first, second = FakeProcess("trainer-0"), FakeProcess("trainer-1")
        watch.add(0, first)  # type: ignore[arg-type]
        watch.add(1, second)  # type: ignore[arg-type]
        scene(watch, first, second)
        error = await watch.failure()
        watch.close()
        return error

    assert str(asyncio.run(main())) == cause


def test_a_rank_is_named_by_its_process_until_it_says_hello() -> None:
    async def main() -> None:
        watch = RankWatch()
        watch.add(0, FakeProcess("trainer-0"))  # type: ignore[arg-type]
        assert watch.describe({0, 1}) == "trainer rank 0 (pid 17) and trainer rank 1 (not connected)"
        watch.greeted(Hello("trainer", 1, host="node-3", pid=5))
        assert watch.describe([1]) == "trainer rank 1 (pid 5 on node-3)"
        watch.close()

    asyncio.run(main())
