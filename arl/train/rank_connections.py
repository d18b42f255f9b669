"""Connect the controller with the trainer ranks that know the run's key.

rank r (DEALER) ── handshake with the key, Hello(role, rank, pid) ─► admitted: its identity stands for (role, rank)
                ── Left                                            ─► forgotten
anybody else    ── any bytes                                       ─► disconnected (arl.train.channel_access)

A connection that ends without Left, while its process lives, was cut by the network. Then the run ends, because
messages that were under way are lost. ZeroMQ connects the rank again, under an identity that was not admitted.
"""

import asyncio
import contextlib
import hmac
from collections.abc import Collection, Coroutine, Sequence
from typing import Any, NamedTuple, NoReturn

import zmq
import zmq.asyncio
from msgspec import Struct
from zmq.utils.monitor import recv_monitor_message

from arl.errors import TrainerError, short_message
from arl.launch.address import free_listener
from arl.launch.trust import RunTrust
from arl.train import channel
from arl.train.channel import FRAME_BYTES, Hello, Left, Refused
from arl.train.channel_access import AdmissionByKey, guard_server

ENCRYPTION_BYTES = 256  # that a frame may be longer on the wire
MOST_FRAMES = 1024  # of a message: 1 GiB, the tokens of some 50 million places
LEFT_SECONDS = 1.0  # in which the last messages of a connection that has ended are read
DEATH_SECONDS = 60.0  # in which a launcher reports a dead process, on a node that has died as well


class Peer(NamedTuple):
    """Describe an admitted connection."""

    hello: Hello
    descriptor: int  # of its socket; another connection may have it afterwards


class RankConnections:
    """Hold one listening socket for all ranks and for their threads. Construct it inside a running loop.

    Somebody must run `admit`, without which nobody is admitted, and `cut` or `ignore_ends`, without which thousands of
    strangers stop all traffic.

    Args:
        num_ranks: ranks from 0 to num_ranks - 1 are admitted.
        trust: secrets of the run.
        host: address to listen on.
    """

    def __init__(self, num_ranks: int, trust: RunTrust, host: str) -> None:
        self._num_ranks = num_ranks
        self._run_key = trust.key
        self._peers: dict[bytes, Peer] = {}  # by identity of the connection
        self._context = zmq.asyncio.Context()
        self._admission = AdmissionByKey(self._context, trust.key)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a message to a connection that is gone raises
        self._socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES + ENCRYPTION_BYTES)  # of a frame, admitted or not
        self._ends = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._address = self._listen(host)
        self.environment = {channel.ADDRESS: self._address, **trust.environment}  # of every rank
        self.secrets = trust.secrets  # further variables of every rank

    def _listen(self, host: str) -> str:
        """Listen on a free port of `host`, and return its address."""
        with free_listener(host) as listener:
            listener.listen()
            name = f"[{host}]" if ":" in host else host
            address = f"tcp://{name}:{listener.getsockname()[1]}"
            guard_server(self._socket, address, self._run_key)
            self._socket.setsockopt(zmq.IPV6, int(":" in host))
            self._socket.setsockopt(zmq.USE_FD, listener.fileno())
            self._socket.bind(address)
            listener.detach()  # ZeroMQ closes it
        return address

    def close(self) -> None:
        """Close every connection; what is not sent yet is dropped."""
        self._context.destroy(linger=0)

    @property
    def connected(self) -> Collection[Hello]:
        """Return who has said Hello and has not left."""
        return [peer.hello for peer in self._peers.values()]

    def admit(self) -> Coroutine[Any, Any, NoReturn]:
        """Admit whoever shows the run key, until this is cancelled."""
        return self._admission.run()

    async def receive(self) -> tuple[Hello, channel.FromRank]:
        """Wait for the next message of an admitted peer, and return who sent it. The first is its Hello, the last Left.

        Raises:
            TrainerError: a process of the run has sent something that is no message; names it.
        """
        while True:
            identity, *frames = await self._receive_frames()
            if identity.bytes in self._peers:
                return self._read(identity.bytes, frames)
            hello = self._read_hello(frames)
            if hello is not None:
                self._peers[identity.bytes] = Peer(hello, identity.get(zmq.SRCFD))
                return hello, hello
            await self._refuse(identity.bytes)

    async def _receive_frames(self) -> list[zmq.Frame]:
        """Wait for a message. ZeroMQ has all of its frames by then; no more are copied than a message may have.

        Raises:
            TrainerError: a process of the run has sent more.
        """
        frames = [await self._socket.recv(copy=False)]
        while frames[-1].more:
            if len(frames) > MOST_FRAMES:
                peer = self._peers.get(frames[0].bytes)
                sender = _unnamed(frames[-1]) if peer is None else str(peer.hello)
                raise TrainerError(f"{sender} has sent a message of more than {MOST_FRAMES} frames")
            frames.append(await self._socket.recv(copy=False))
        return frames

    def _read(self, identity: bytes, frames: Sequence[zmq.Frame]) -> tuple[Hello, channel.FromRank]:
        """Decode a message of an admitted peer, and forget a peer that leaves.

        Raises:
            TrainerError: it is none, or a second Hello.
        """
        hello = self._peers[identity].hello
        message = _decoded(frames, str(hello))
        if isinstance(message, Hello):
            raise TrainerError(f"{hello} has sent a second Hello over one connection: {message}")
        if isinstance(message, Left):
            del self._peers[identity]
        return hello, message

    def _read_hello(self, frames: Sequence[zmq.Frame]) -> Hello | None:
        """Return the Hello of a process of this run; None if it is none, or not of a rank.

        Raises:
            TrainerError: a process of the run has sent something else.
        """
        if len(frames) != 2 or not hmac.compare_digest(frames[0].bytes, self._run_key.encode()):
            return None
        message = _decoded(frames[1:], _unnamed(frames[1]))
        if not isinstance(message, Hello) or not 0 <= message.rank < self._num_ranks:
            return None
        return message

    async def _refuse(self, identity: bytes) -> None:
        reason = "it has no such rank; or the network has cut the connection, and what was under way is lost"
        refused = channel.encode(Refused(reason))
        with contextlib.suppress(zmq.ZMQError):  # one that has left, or does not read, needs no answer
            await self._socket.send_multipart([identity, refused], flags=zmq.DONTWAIT)

    async def send(self, role: str, rank: int, message: Struct) -> None:
        """Send `message` to the thread `role` of `rank`.

        Raises:
            ConnectionError: the thread has never connected, or its connection is gone.
        """
        for identity, peer in self._peers.items():
            if (peer.hello.role, peer.hello.rank) == (role, rank):
                await self._send(identity, peer.hello, message)
                return
        raise ConnectionError(f"{role} of rank {rank} has not connected")

    async def _send(self, identity: bytes, hello: Hello, message: Struct) -> None:
        try:
            await self._socket.send_multipart([identity, channel.encode(message)], copy=False)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            raise ConnectionError(f"the connection of {hello.role} of rank {hello.rank} is gone") from error

    async def cut(self) -> TrainerError:
        """Wait until the network has cut the connection of an admitted peer, and return the error that names it.

        Consumes ends of connections; waits for time; unblocked by it. An end by Left is none, and the death of a
        process is reported by its launcher, for which it leaves time.
        """
        ended: set[int] = set()
        while True:
            ended |= await self._ends_within(LEFT_SECONDS)
            suspects = [peer for descriptor in ended for peer in self._held(descriptor)]
            ended = set()
            if suspects:
                ended = await self._ends_within(DEATH_SECONDS)
            for identity, hello in suspects:
                if identity in self._peers and not await self._reaches(identity):
                    return self._cut_off(hello)

    async def ignore_ends(self) -> NoReturn:
        """Read ends of connections that are no failure any more. Waits for them; ends only by a cancellation."""
        while True:
            await self._ends_within(LEFT_SECONDS)

    async def _ends_within(self, seconds: float) -> set[int]:
        """Read ends of connections for so long, and return their sockets.

        Strangers make them by the thousand. They are read all the time, because ZeroMQ stops all traffic while its
        queue of them is full.
        """
        ended: set[int] = set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    end = await recv_monitor_message(self._ends)
                    ended.add(end["value"])
                    await asyncio.sleep(0)  # one that is there already is read without a turn of the loop
        return ended

    def _cut_off(self, hello: Hello) -> TrainerError:
        what = f"the network has cut the connection of {hello} to the controller at {self._address}"
        return TrainerError(f"{what}: its process has not ended, and what was under way is lost")

    def _held(self, descriptor: int) -> list[tuple[bytes, Hello]]:
        """Return identity and Hello of peers that were admitted with this socket, and have not left."""
        return [(identity, peer.hello) for identity, peer in self._peers.items() if peer.descriptor == descriptor]

    async def _reaches(self, identity: bytes) -> bool:
        """Return whether a connection still stands, by an empty message, which its peer passes over."""
        try:
            await self._socket.send_multipart([identity, b""], flags=zmq.DONTWAIT)
        except zmq.Again:
            return True  # it does not read
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True


def _decoded(frames: Sequence[zmq.Frame], sender: str) -> channel.FromRank:
    """Decode a message of a process that knows the run key.

    Raises:
        TrainerError: it is none.
    """
    try:
        return channel.decode_from_rank(b"".join(frame.buffer for frame in frames))
    except ValueError as error:
        wrong = f"{sender} has sent what is no message: {short_message(str(error))}"
        raise TrainerError(f"{wrong}; does every node have the same version of arl?") from None


def _unnamed(frame: zmq.Frame) -> str:
    """Name the sender of a frame by its address, because it has not said who it is."""
    return f"a process at {frame.get('Peer-Address')} that knows the run key and has not said who it is"
