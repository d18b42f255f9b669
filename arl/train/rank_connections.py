"""Connect the controller with the trainer ranks that know the run's key.

rank r (DEALER) ── handshake with the key, Hello(rank, pid) ─► its identity stands for the rank
anybody else    ── any bytes                                ─► disconnected (arl.train.channel_access)
"""

from collections.abc import Coroutine
from typing import Any, NoReturn

import zmq
import zmq.asyncio

from arl.errors import TrainerError, short_message
from arl.launch.address import free_listener
from arl.launch.trust import RunTrust
from arl.train import channel
from arl.train.channel import Hello, Request
from arl.train.channel_access import AdmissionByKey, guard_server


class RankConnections:
    """Hold the listening socket. Construct it inside a running loop.

    Run `admit` meanwhile, without which ZeroMQ admits no connection.

    Args:
        trust: secrets of the run.
        host: address to listen on.
    """

    def __init__(self, trust: RunTrust, host: str) -> None:
        self.hellos: dict[int, Hello] = {}  # by rank
        self._identities: dict[int, bytes] = {}  # of its connection, by rank
        self._context = zmq.asyncio.Context()
        self._admission = AdmissionByKey(self._context, trust.key)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a message to a connection that is gone raises
        self.address = self._listen(host, trust.key)

    def _listen(self, host: str, run_key: str) -> str:
        """Listen on a free port of `host`, and return its address."""
        with free_listener(host) as listener:
            listener.listen()
            name = f"[{host}]" if ":" in host else host
            address = f"tcp://{name}:{listener.getsockname()[1]}"
            guard_server(self._socket, address, run_key)
            self._socket.setsockopt(zmq.IPV6, int(":" in host))
            self._socket.setsockopt(zmq.USE_FD, listener.fileno())
            self._socket.bind(address)
            listener.detach()  # ZeroMQ closes it
        return address

    def close(self) -> None:
        """Close every connection; what is not sent yet is dropped."""
        self._context.destroy(linger=0)

    def admit(self) -> Coroutine[Any, Any, NoReturn]:
        """Admit whoever shows the run key, until this is cancelled."""
        return self._admission.run()

    async def receive(self) -> tuple[int, channel.FromRank]:
        """Wait for the next message, and return the rank that sent it. The first of a connection is its Hello.

        Raises:
            TrainerError: a process of the run has sent something that is no message; names it.
        """
        identity, data = await self._socket.recv_multipart(copy=False)
        hello = self._sender(identity.bytes)
        name = f"a process at {data.get('Peer-Address')} that knows the run key" if hello is None else str(hello)
        try:
            message = channel.decode_from_rank(data.bytes)
        except ValueError as error:
            wrong = f"{name} has sent what is no message: {short_message(str(error))}"
            raise TrainerError(f"{wrong}; does every node have the same version of arl?") from None
        if isinstance(message, Hello):
            self.hellos[message.rank] = message
            self._identities[message.rank] = identity.bytes
            return message.rank, message
        if hello is None:  # ZeroMQ has connected it again, under another identity
            lost = "the network has cut its connection, and what was under way is lost"
            raise TrainerError(f"{name} has sent {type(message).__name__} without a Hello: {lost}")
        return hello.rank, message

    def _sender(self, identity: bytes) -> Hello | None:
        for rank, known in self._identities.items():
            if known == identity:
                return self.hellos[rank]
        return None

    async def send(self, rank: int, request: Request) -> None:
        """Send a request to a rank. If its connection is gone it has died, which its launcher reports."""
        if rank not in self._identities:
            return
        try:
            await self._socket.send_multipart([self._identities[rank], channel.encode(request)], copy=False)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
