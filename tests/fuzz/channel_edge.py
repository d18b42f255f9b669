"""Send damaged messages to the trainer's channel, without the run's key and with it, beside an honest rank."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from unittest import mock

import msgspec
import numpy as np
import zmq
from msgspec import Struct

from arl.errors import TrainerError
from arl.launch.address import LOOPBACK
from arl.launch.trust import RunTrust
from arl.sync.buckets import TensorSpec
from arl.train import channel, channel_access
from arl.train.channel import FRAME_BYTES, Claimed, Failed, Hello, Joined, Left, Published, Ready, Saved, Sent, Stepped
from arl.train.channel_access import show_key
from arl.train.rank_connections import RankConnections
from arl.train.shard import PackSizes
from arl.train.trained_tokens import TokenLogprobs
from arl.types import WeightUpdate
from tests.fuzz.damage import damage_bytes, damage_value
from tests.fuzz.strangers import Background, SilentCrowd, as_msgpack, crowd, damaged, messages, say, shown
from tests.fuzz.trials import Draw, Edge, Trial

TRUST = RunTrust("0123456789abcdef" * 3)
HONEST = Hello("trainer", 0, "here", 17)
LONGEST_ANSWER = 200  # bytes: a greeting, and an error
SIGNATURE = b"\xff\0\0\0\0\0\0\0\x01\x7f"  # with which ZeroMQ begins
GREETING = SIGNATURE + b"\x03\x01"


class Listening:
    """Run the channel in a thread, with one honest rank.

    Args:
        is_network: listen as beyond loopback, with CURVE.
    """

    def __init__(self, loop: Background, peers: "zmq.Context[zmq.Socket[bytes]]", is_network: bool) -> None:
        self._loop = loop
        self._peers = peers
        self._is_network = is_network
        self._number = 0
        self._connections = loop.call(self._open())
        self._tasks = [loop.begin(self._connections.admit()), loop.begin(self._connections.ignore_ends())]
        self._address = self._connections.environment[channel.ADDRESS]
        self.port = int(self._address.rpartition(":")[2])
        self._honest = self.connected()
        self.greet(self._honest, HONEST)
        assert loop.call(self._connections.receive()) == (HONEST, HONEST)

    async def _open(self) -> RankConnections:
        with mock.patch.object(channel_access, "is_encrypted", return_value=self._is_network):
            return RankConnections(2, TRUST, LOOPBACK)

    def connected(self) -> "zmq.Socket[bytes]":
        """Connect somebody who knows the key."""
        made = self._peers.socket(zmq.DEALER)
        made.setsockopt(zmq.LINGER, 0)
        with mock.patch.object(channel_access, "is_encrypted", return_value=self._is_network):
            show_key(made, self._address, TRUST.key)
        made.connect(self._address)
        return made

    def greet(self, peer: "zmq.Socket[bytes]", hello: Hello) -> None:
        """Say Hello, as a rank does."""
        peer.send_multipart([TRUST.key.encode(), channel.encode(hello)])

    def exchange(self) -> list[TrainerError]:
        """Have the honest rank send a message, and return what went wrong until it arrived, unchanged."""
        self._number += 1
        self._honest.send(channel.encode(Saved(self._number)))
        errors = []
        while True:
            try:
                received = self._loop.call(self._connections.receive())
            except TrainerError as error:
                errors.append(error)
                continue
            if received == (HONEST, Saved(self._number)):
                assert not any(task.done() for task in self._tasks), "nobody is admitted any more"
                return errors

    def arrived(self, sender: Hello) -> TrainerError | None:
        """Wait for a message of `sender`, and return what is wrong with it."""
        try:
            while self._loop.call(self._connections.receive())[0] != sender:
                continue
        except TrainerError as error:
            return error
        return None

    def close(self) -> None:
        """Close the channel."""
        self._honest.close()

        async def close() -> None:
            for task in self._tasks:
                task.cancel()
            self._connections.close()

        self._loop.call(close())


@contextlib.contextmanager
def listening() -> Iterator[list[Listening]]:
    """Yield a channel on loopback, and one as on a network."""
    loop = Background()
    peers: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    both = [Listening(loop, peers, is_network) for is_network in (False, True)]
    try:
        yield both
        for one in both:
            assert one.exchange() == []
            late = one.connected()
            one.greet(late, Hello("late", 1, "there", 18))
            assert one.arrived(Hello("late", 1, "there", 18)) is None
            late.close()
    finally:
        for one in both:
            one.close()
        peers.destroy(linger=0)
        loop.close()


@contextlib.contextmanager
def without_key(folder: Path) -> Iterator[Draw]:
    """Try strangers. None of them reads more than a greeting, and the honest rank's messages arrive."""
    with listening() as both, crowd() as silent:

        def draw(random: Random) -> Trial:
            target = random.choice(both)
            message = random.choice([*messages(random), *_handshakes(random)])
            pieces = damaged(random, message)
            stays = random.random() < 0.2
            return Trial(shown(pieces), lambda: _try_stranger(target, pieces, silent, stays))

        yield draw


def _handshakes(random: Random) -> list[bytes]:
    """Return handshakes of PLAIN with wrong passwords, and whole conversations, also of older versions of ZMTP."""
    user = random.choice((b"rank", b"\xff\xfe", b"r" * 255, b"", b"a\0b"))
    guess = random.choice((b"", b"x" * 64, random.randbytes(255)))
    command = b"\x05HELLO" + bytes([len(user)]) + user + bytes([len(guess)]) + guess
    whole = GREETING[:12] + b"PLAIN".ljust(20, b"\0") + b"\0" * 32 + _command(command)
    initiate = _command(b"\x08INITIATE\x0bSocket-Type\0\0\0\x06DEALER")
    frame = _frame(b"k" * 48, more=True) + _frame(channel.encode(HONEST), more=False)
    first, second = b"\x01\0", SIGNATURE + b"\x01\x05\0\0"  # of the protocol's versions 1 and 2, which know no keys
    return [whole, whole + initiate + frame, whole + initiate + frame * 50, first + frame, second + frame]


def _command(body: bytes) -> bytes:
    return b"\x04" + bytes([len(body)]) + body if len(body) < 256 else b"\x06" + len(body).to_bytes(8, "big") + body


def _frame(body: bytes, more: bool) -> bytes:
    return bytes([int(more), len(body)]) + body


def _try_stranger(target: Listening, pieces: list[bytes], silent: SilentCrowd, stays: bool) -> None:
    answer = say(target.port, pieces, silent, stays)
    assert SIGNATURE.startswith(answer[: len(SIGNATURE)]), answer
    assert len(answer) < LONGEST_ANSWER, answer
    assert b"WELCOME" not in answer, answer
    assert target.exchange() == []


@contextlib.contextmanager
def with_key(folder: Path) -> Iterator[Draw]:
    """Try processes of the run that have gone wrong: each is named, and the others' messages arrive."""
    with listening() as both:
        count = 0

        def draw(random: Random) -> Trial:
            nonlocal count
            count += 1
            target = random.choice(both)
            sender = Hello(f"group {count}", random.randint(0, 1), "there", random.getrandbits(22))
            frames = _wrong(random)
            is_first = random.random() < 0.2
            what = f"{'first' if is_first else 'later'}, {shown(frames)}"
            return Trial(what, lambda: _try_process(target, sender, frames, is_first))

        yield draw


def _try_process(target: Listening, sender: Hello, frames: list[bytes], is_first: bool) -> None:
    peer = target.connected()
    try:
        if is_first:
            peer.send_multipart([TRUST.key.encode(), *frames])
            target.greet(peer, sender)  # what comes first may be refused without a word
        else:
            target.greet(peer, sender)
            assert target.arrived(sender) is None
            peer.send_multipart(frames)
        error = target.arrived(sender)
        assert target.exchange() == []
        if error is not None:
            assert re.search(r"\(pid \d+ on |a process at \S+ that knows the run key", str(error)), error
            raise error
    finally:
        peer.close()


def _wrong(random: Random) -> list[bytes]:
    """Return a damaged message of a rank, in frames."""
    message = random.choice(_MESSAGES)
    if random.random() < 0.5:
        data = damage_bytes(random, channel.encode(message))
    else:
        data = as_msgpack(damage_value(random, msgspec.msgpack.decode(channel.encode(message))))
    if random.random() < 0.05:
        return [data] * random.choice((2, 1100))
    return [data[start : start + FRAME_BYTES] for start in range(0, len(data), FRAME_BYTES)] or [b""]


_MESSAGES: list[Struct] = [
    HONEST,
    Ready((TensorSpec("a", "float32", (2, 3)),)),
    Failed(3, "Traceback"),
    Joined("here", 4000, "gloo"),
    Sent("why"),
    Claimed(3),
    Saved(3),
    Left(),
    Published(WeightUpdate(3, "/a")),
    Stepped(
        version=3,
        metrics={"loss": 0.5, "n": 2},
        sizes=PackSizes(np.ones(2, np.int64), np.ones(2)),
        busy_seconds=1.0,
        logprobs=TokenLogprobs(np.ones(5, np.int32), np.zeros(5, np.float32)),
    ),
]
CHANNEL = Edge(without_key, trials=60)
CHANNEL_WITH_KEY = Edge(with_key, trials=60, refuses=TrainerError)
