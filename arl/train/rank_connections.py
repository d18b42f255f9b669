"""Connect the controller with the trainer ranks that know the run's key.

rank r (DEALER) ── Hello(role, rank, run key, pid) ─► admitted: its identity stands for (role, rank)
anybody else    ── any bytes                       ─► Refused, and nothing of it is read
"""

import contextlib
import hmac

import msgspec
import zmq
import zmq.asyncio
from msgspec import Struct

from arl.launch.address import free_listener
from arl.launch.child import RUN_KEY
from arl.train import channel
from arl.train.channel import Hello, Refused

TRAINER = "trainer"  # role of a rank's main thread


class RankConnections:
    """Holds one listening socket for all ranks and for their threads.

    Args:
        num_ranks: ranks from 0 to num_ranks - 1 are admitted.
        run_key: secret of the run.
        host: address to listen on.
    """

    def __init__(self, num_ranks: int, run_key: str, host: str) -> None:
        self._num_ranks = num_ranks
        self._run_key = run_key
        self._hellos: dict[bytes, Hello] = {}  # by identity of the connection
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a message to a connection that is gone raises
        port = self._bind(host)
        self.environment = {channel.ADDRESS: f"tcp://{host}:{port}"}  # of every rank
        self.secrets = {RUN_KEY: run_key}  # further variables of every rank

    def _bind(self, host: str) -> int:
        """Listen on a free port of `host`, and return it."""
        with free_listener(host) as listener:
            listener.listen()
            self._socket.setsockopt(zmq.USE_FD, listener.fileno())
            port: int = listener.getsockname()[1]
            self._socket.bind(f"tcp://{host}:{port}")
            listener.detach()  # ZeroMQ closes it
        return port

    def close(self) -> None:
        """Close every connection; what is not sent yet is dropped."""
        self._context.destroy(linger=0)

    async def receive(self) -> tuple[Hello, channel.FromRank]:
        """Wait for the next message of an admitted peer, and return who sent it. The first one is its Hello.

        Raises:
            msgspec.MsgspecError: a peer has sent something that is no message.
        """
        while True:
            identity, *frames = await self._socket.recv_multipart()
            data = b"".join(frames)
            if identity in self._hellos:
                return self._hellos[identity], channel.decode_from_rank(data)
            hello = self._read_hello(data)
            if hello is not None:
                self._hellos[identity] = hello
                return hello, hello
            refused = channel.encode(Refused("wrong run key or rank"))
            with contextlib.suppress(zmq.ZMQError):  # a stranger that has left already needs no answer
                await self._socket.send_multipart([identity, refused])

    def _read_hello(self, data: bytes) -> Hello | None:
        """Return the Hello of a process of this run; None if a stranger has sent the message."""
        try:
            message = channel.decode_from_rank(data)
        except msgspec.MsgspecError:
            return None
        if not isinstance(message, Hello) or not 0 <= message.rank < self._num_ranks:
            return None
        if not hmac.compare_digest(message.run_key.encode(), self._run_key.encode()):
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
