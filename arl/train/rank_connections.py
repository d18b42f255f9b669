"""Connect the controller with the trainer ranks that know the run's key.

rank r (DEALER) ── handshake with the key, Hello(role, rank, pid) ─► its identity stands for (role, rank)
                ── Left                                            ─► forgotten
anybody else    ── any bytes                                       ─► disconnected (arl.train.channel_access)

The death of a rank is reported by its launcher (arl.train.rank_watch), and a silence by the deadline of a step.
"""

from collections.abc import Collection, Coroutine
from typing import Any, NoReturn

import zmq
import zmq.asyncio
from msgspec import Struct

from arl.errors import TrainerError, short_message
from arl.launch.network import free_listener
from arl.launch.run_secrets import RunSecrets
from arl.train import channel
from arl.train.channel import Hello, Left
from arl.train.channel_access import AdmissionByKey, guard_server


class RankConnections:
    """Hold one listening socket for all ranks and for their threads. Construct it inside a running loop.

    Run `admit` meanwhile, without which ZeroMQ admits no connection.

    Args:
        trust: secrets of the run.
        host: address to listen on.
    """

    def __init__(self, trust: RunSecrets, host: str) -> None:
        self._run_key = trust.key
        self._peers: dict[bytes, Hello] = {}  # by identity of the connection
        self._context = zmq.asyncio.Context()
        self._admission = AdmissionByKey(self._context, trust.key)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a message to a connection that is gone raises
        address = self._listen(host)
        self.environment = {channel.ADDRESS: address, **trust.environment}  # of every rank
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
        return self._peers.values()

    def admit(self) -> Coroutine[Any, Any, NoReturn]:
        """Admit whoever shows the run key, until this is cancelled."""
        return self._admission.run()

    async def receive(self) -> tuple[Hello, channel.FromRank]:
        """Wait for the next message, and return who sent it. The first of a connection is its Hello, the last Left.

        Raises:
            TrainerError: a process of the run has sent something that is no message; names it.
        """
        identity, data = await self._socket.recv_multipart(copy=False)
        hello = self._peers.get(identity.bytes)
        sender = f"a process at {data.get('Peer-Address')} that knows the run key" if hello is None else str(hello)
        try:
            message = channel.decode_from_rank(data.bytes)
        except ValueError as error:
            wrong = f"{sender} has sent what is no message: {short_message(str(error))}"
            raise TrainerError(f"{wrong}; does every node have the same version of arl?") from None
        if isinstance(message, Hello):
            self._peers[identity.bytes] = message
            return message, message
        if hello is None:  # ZeroMQ has connected it again, under another identity
            lost = "the network has cut its connection, and what was under way is lost"
            raise TrainerError(f"{sender} has sent {type(message).__name__} without a Hello: {lost}")
        if isinstance(message, Left):
            del self._peers[identity.bytes]
        return hello, message

    async def send(self, role: str, rank: int, message: Struct) -> None:
        """Send `message` to the thread `role` of `rank`.

        Raises:
            ConnectionError: the thread has never connected, or its connection is gone.
        """
        for identity, hello in self._peers.items():
            if (hello.role, hello.rank) == (role, rank):
                await self._send(identity, hello, message)
                return
        raise ConnectionError(f"{role} of rank {rank} has not connected")

    async def _send(self, identity: bytes, hello: Hello, message: Struct) -> None:
        try:
            await self._socket.send_multipart([identity, channel.encode(message)], copy=False)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            raise ConnectionError(f"the connection of {hello.role} of rank {hello.rank} is gone") from error
