"""Connect trainer ranks to the controller by ZeroMQ. A rank has one socket, which all of its threads share.

a thread ─► answer, tell ─► queue ─► [channel thread: the only one that uses the socket] ─► RankConnections
RankConnections ─► RankRequest ─► [channel thread] ─► inbox of the thread `to` ─► receive

A request to a thread that has ended is answered at once with why it has ended. Both ends use CURVE with key pairs that
derive from the run key, so nobody else takes part.
"""

import os
import platform
import threading
from queue import SimpleQueue
from typing import NoReturn

import zmq
import zmq.asyncio
from msgspec import Struct
from zmq.utils import z85

from arl.errors import TrainerError, short_message
from arl.launch.child import RUN_KEY
from arl.launch.run_secrets import RunSecrets, derive
from arl.train import channel
from arl.train.channel import MAIN, Hello, RankAnswer, RankRequest

LINGER_SECONDS = 10.0  # for the last message to leave
ZAP = "inproc://zeromq.zap.01"  # where ZeroMQ asks who may connect, see rfc.zeromq.org/spec/27


class Link:
    """Receive the controller's requests, and send messages to it. Every method may be called by any thread.

    Args:
        meeting: where the ranks meet, if this is rank 0.
    """

    def __init__(self, meeting: tuple[str, int] = ("", 0)) -> None:
        self.rank = int(os.environ["RANK"])
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = connect(self._context, os.environ[channel.ADDRESS], os.environ[RUN_KEY], self.rank)
        self._queue = self._context.socket(zmq.PULL)
        self._queue.bind("inproc://queue")
        self._sender = self._context.socket(zmq.PUSH)
        self._sender.connect("inproc://queue")
        self._sending = threading.Lock()
        self._inboxes: dict[str, SimpleQueue[RankRequest]] = {MAIN: SimpleQueue()}
        self._ended: dict[str, str] = {}  # why a thread that had an inbox has none
        self._delivering = threading.Lock()
        host, port = meeting
        self.tell(Hello(self.rank, platform.node(), os.getpid(), host, port))
        self._thread = threading.Thread(target=self._exchange, name="channel", daemon=True)
        self._thread.start()

    def open(self, name: str, first: RankRequest | None = None) -> None:
        """Take requests to the thread `name` from now on, which may start later; `first` is its first one."""
        inbox: SimpleQueue[RankRequest] = SimpleQueue()
        if first is not None:
            inbox.put(first)
        self._inboxes[name] = inbox

    def receive(self, name: str = MAIN) -> RankRequest:
        """Wait for the next request to the thread `name`, without a deadline: this process dies with the controller."""
        return self._inboxes[name].get()

    def answer(self, request: RankRequest, body: Struct | None = None, error: str = "") -> None:
        """Answer a request, with `error` if it was not done."""
        self.tell(RankAnswer(request.id, body, error))  # type: ignore[arg-type]

    def tell(self, message: Struct) -> None:
        """Send a message without waiting for the controller."""
        self._send(channel.encode(message))

    def end(self, name: str, error: str) -> None:
        """Answer what the thread `name` has not received, and whatever comes for it later, with `error`."""
        with self._delivering:
            self._ended[name] = error
            inbox = self._inboxes.pop(name)
        while not inbox.empty():
            self.answer(inbox.get(), error=error)

    def close(self) -> None:
        """Close the connection when its last message has left."""
        self._send(b"")
        self._thread.join()
        self._sender.close()
        self._context.term()

    def _send(self, data: bytes) -> None:
        with self._sending:
            self._sender.send(data, copy=False)

    def _exchange(self) -> None:
        """Consumes what threads send and what the controller asks; waits for either; unblocked by it, or by `close`."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._queue, zmq.POLLIN)
        with self._socket, self._queue:
            while True:
                ready = dict(poller.poll())
                if self._queue in ready:
                    message = self._queue.recv(copy=False)
                    if not len(message):
                        return
                    self._socket.send(message, copy=False)
                if self._socket in ready:
                    self._deliver(channel.decode_request(self._socket.recv()))

    def _deliver(self, request: RankRequest) -> None:
        with self._delivering:
            inbox = self._inboxes.get(request.to)
            if inbox is not None:
                inbox.put(request)
                return
        self.answer(request, error=self._ended[request.to])


class RankConnections:
    """Hold the listening socket. Construct it inside a running loop, and run `admit` meanwhile.

    Args:
        trust: secrets of the run.
        host: address to listen on.
    """

    def __init__(self, trust: RunSecrets, host: str) -> None:
        self.hellos: dict[int, Hello] = {}  # by rank
        self._context = zmq.asyncio.Context()
        self._admitted, _ = key_pair(trust.key, "client")
        self._questions = self._context.socket(zmq.REP)
        self._questions.bind(ZAP)  # before the socket listens: ZeroMQ admits every client where there is none to ask
        self._socket = self._context.socket(zmq.ROUTER)
        _, secret = key_pair(trust.key, "server")
        self._socket.setsockopt(zmq.CURVE_SERVER, 1)
        self._socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        is_ipv6 = ":" in host
        self._socket.setsockopt(zmq.IPV6, int(is_ipv6))
        self._socket.bind(f"tcp://[{host}]:*" if is_ipv6 else f"tcp://{host}:*")
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    async def admit(self) -> NoReturn:
        """Answer ZeroMQ, which asks in each handshake who may connect. Waits for the next; unblocked by it."""
        while True:
            version, number, *_, mechanism, key = await self._questions.recv_multipart()
            is_known = mechanism == b"CURVE" and z85.encode(key) == self._admitted
            status = [b"200", b"OK"] if is_known else [b"400", b"it does not know the run key"]
            await self._questions.send_multipart([version, number, *status, b"", b""])

    def close(self) -> None:
        """Close every connection; what is not sent yet is dropped."""
        self._context.destroy(linger=0)

    async def receive(self) -> tuple[int, channel.FromRank]:
        """Wait for the next message, and return the rank that sent it.

        Raises:
            TrainerError: a rank has sent something that is no message; names it.
        """
        identity, data = await self._socket.recv_multipart()
        rank = int(identity)
        try:
            message = channel.decode_from_rank(data)
        except ValueError as error:
            name = self.hellos.get(rank, f"trainer rank {rank}")
            raise TrainerError(
                f"{name} has sent what is no message: {short_message(str(error))}; "
                "does every node have the same version of arl?"
            ) from None
        if isinstance(message, Hello):
            self.hellos[rank] = message
        return rank, message

    async def send(self, rank: int, request: RankRequest) -> None:
        """Send a request to a rank. It is dropped if the rank has died, which its launcher reports."""
        await self._socket.send_multipart([str(rank).encode(), channel.encode(request)], copy=False)


def key_pair(run_key: str, side: str) -> tuple[bytes, bytes]:
    """Derive the public and the secret key of the server, or of all clients, in ZeroMQ's notation."""
    secret = z85.encode(derive(run_key, f"trainer channel, {side}"))
    return zmq.curve_public(secret), secret


def connect(context: "zmq.Context[zmq.Socket[bytes]]", address: str, run_key: str, rank: int) -> "zmq.Socket[bytes]":
    """Connect a rank to the controller at `address`, if both know the run key."""
    public, secret = key_pair(run_key, "client")
    public_of_server, _ = key_pair(run_key, "server")
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, int(LINGER_SECONDS * 1000))
    socket.setsockopt(zmq.IDENTITY, str(rank).encode())
    socket.setsockopt(zmq.CURVE_SERVERKEY, public_of_server)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
    socket.setsockopt(zmq.IPV6, int("[" in address))
    socket.connect(address)
    return socket
