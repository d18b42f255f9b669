"""Connect the controller with the trainer ranks that know the run's key.

rank r (DEALER) ── run key, Hello(role, rank, pid) ─► admitted: its identity stands for (role, rank)
anybody else    ── any bytes                       ─► Refused, and nothing of it is decoded

Beyond loopback the connection is encrypted (arl.train.curve), and a stranger's bytes do not get as far as this.
"""

import contextlib
import hmac
from collections.abc import Sequence

import zmq
import zmq.asyncio
from msgspec import Struct
from zmq.auth.asyncio import AsyncioAuthenticator

from arl.launch.address import free_listener
from arl.launch.trust import RunTrust
from arl.train import channel
from arl.train.channel import FRAME_BYTES, Hello, Refused
from arl.train.curve import OnlyClient, encrypt_server, is_encrypted

TRAINER = "trainer"  # role of a rank's main thread
ENCRYPTION_BYTES = 256  # that a frame may be longer on the wire


class RankConnections:
    """Holds one listening socket for all ranks and for their threads. Construct it inside a running loop.

    Args:
        num_ranks: ranks from 0 to num_ranks - 1 are admitted.
        trust: secrets of the run.
        host: address to listen on.
    """

    def __init__(self, num_ranks: int, trust: RunTrust, host: str) -> None:
        self._num_ranks = num_ranks
        self._run_key = trust.key
        self._hellos: dict[bytes, Hello] = {}  # by identity of the connection
        self._context = zmq.asyncio.Context()
        self._authenticator: AsyncioAuthenticator | None = None
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a message to a connection that is gone raises
        self._socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES + ENCRYPTION_BYTES)  # of a frame, admitted or not
        address = self._listen(host)
        self.environment = {channel.ADDRESS: address}  # of every rank
        self.secrets = trust.secrets  # further variables of every rank

    def _listen(self, host: str) -> str:
        """Listen on a free port of `host`, and return its address."""
        with free_listener(host) as listener:
            listener.listen()
            name = f"[{host}]" if ":" in host else host
            address = f"tcp://{name}:{listener.getsockname()[1]}"
            if is_encrypted(address):
                self._authenticator = AsyncioAuthenticator(self._context)
                self._authenticator.start()
                self._authenticator.configure_curve_callback("*", OnlyClient(self._run_key))
                encrypt_server(self._socket, self._run_key)
            self._socket.setsockopt(zmq.IPV6, int(":" in host))
            self._socket.setsockopt(zmq.USE_FD, listener.fileno())
            self._socket.bind(address)
            listener.detach()  # ZeroMQ closes it
        return address

    def close(self) -> None:
        """Close every connection; what is not sent yet is dropped."""
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.destroy(linger=0)

    async def receive(self) -> tuple[Hello, channel.FromRank]:
        """Wait for the next message of an admitted peer, and return who sent it. The first one is its Hello.

        Raises:
            msgspec.MsgspecError: a process of the run has sent something that is no message.
        """
        while True:
            identity, *frames = await self._socket.recv_multipart()
            if identity in self._hellos:
                return self._hellos[identity], channel.decode_from_rank(b"".join(frames))
            hello = self._read_hello(frames)
            if hello is not None:
                self._hellos[identity] = hello
                return hello, hello
            refused = channel.encode(Refused("wrong run key or rank"))
            with contextlib.suppress(zmq.ZMQError):  # a stranger that has left, or does not read, needs no answer
                await self._socket.send_multipart([identity, refused], flags=zmq.DONTWAIT)

    def _read_hello(self, frames: Sequence[bytes]) -> Hello | None:
        """Return the Hello of a process of this run; None if a stranger has sent the frames, which are not decoded.

        Raises:
            msgspec.MsgspecError: a process of the run has sent something else.
        """
        if len(frames) != 2 or not hmac.compare_digest(frames[0], self._run_key.encode()):
            return None
        message = channel.decode_from_rank(frames[1])
        if not isinstance(message, Hello) or not 0 <= message.rank < self._num_ranks:
            return None
        return message

    async def send(self, role: str, rank: int, message: Struct) -> None:
        """Send `message` to the thread `role` of `rank`.

        Raises:
            ConnectionError: the thread has never connected, or its connection is gone.
        """
        for identity, hello in self._hellos.items():
            if (hello.role, hello.rank) == (role, rank):
                await self._send(identity, message)
                return
        raise ConnectionError(f"{role} of rank {rank} has not connected")

    async def _send(self, identity: bytes, message: Struct) -> None:
        try:
            await self._socket.send_multipart([identity, channel.encode(message)], copy=False)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            hello = self._hellos[identity]
            raise ConnectionError(f"the connection of {hello.role} of rank {hello.rank} is gone") from error
