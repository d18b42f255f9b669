"""Connect a trainer rank to the controller: one socket, which all of the rank's threads share.

a thread ─► answer, tell ─► queue ─► [channel thread: the only one that uses the socket] ─► controller
controller ─► RankRequest ─► [channel thread] ─► inbox of the thread `to` ─► receive

A request to a thread that has ended is answered at once with why it has ended.
"""

import contextlib
import hmac
import os
import platform
import threading
from collections.abc import Coroutine
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, NoReturn
from urllib.parse import urlsplit

import zmq
import zmq.asyncio
from msgspec import Struct
from zmq.utils import z85

from arl.errors import TrainerError, short_message
from arl.launch.child import RUN_KEY
from arl.launch.network import free_listener, is_loopback
from arl.launch.run_secrets import RunSecrets, derive
from arl.train import channel
from arl.train.channel import MAIN, Hello, RankAnswer, RankRequest

LINGER_SECONDS = 10.0  # for the last message to leave


class Link:
    """Receive the controller's requests, and send messages to it. Every method may be called by any thread.

    Args:
        meeting: where the ranks meet, if this is rank 0.
    """

    def __init__(self, meeting: tuple[str, int] = ("", 0)) -> None:
        self.rank = int(os.environ["RANK"])
        self._address = os.environ[channel.ADDRESS]
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, int(LINGER_SECONDS * 1000))
        self._socket.setsockopt(zmq.SNDTIMEO, int(LINGER_SECONDS * 1000))  # to a controller that has refused the key
        show_key(self._socket, self._address, os.environ[RUN_KEY])
        self._socket.connect(self._address)
        self._queue = self._context.socket(zmq.PULL)
        self._queue.bind("inproc://queue")
        self._sender = self._context.socket(zmq.PUSH)
        self._sender.connect("inproc://queue")
        self._sender.setsockopt(zmq.SNDTIMEO, int(LINGER_SECONDS * 1000))
        self._sending = threading.Lock()
        self._inboxes: dict[str, SimpleQueue[RankRequest | Exception]] = {MAIN: SimpleQueue()}
        self._ended: dict[str, str] = {}  # why a thread that had an inbox has none
        self._delivering = threading.Lock()
        hello = Hello(
            rank=self.rank,
            host=platform.node(),
            pid=os.getpid(),
            address=meeting[0],
            port=meeting[1],
        )
        self.tell(hello)
        self._thread = threading.Thread(target=self._run, name="channel", daemon=True)
        self._thread.start()

    def open(self, name: str, first: RankRequest | None = None) -> None:
        """Take requests to the thread `name` from now on, which may start later; `first` is its first one."""
        inbox: SimpleQueue[RankRequest | Exception] = SimpleQueue()
        if first is not None:
            inbox.put(first)
        self._inboxes[name] = inbox

    def receive(self, name: str = MAIN, seconds: float | None = None) -> RankRequest:
        """Wait for the controller's next request to the thread `name`.

        Args:
            seconds: deadline. None: there is none, because this process dies with the controller.

        Raises:
            TimeoutError: `seconds` passed.
        """
        try:
            request = self._inboxes[name].get(timeout=seconds)
        except Empty:
            wrong = "it may have another run key and refuse ours"
            raise TimeoutError(f"the controller at {self._address} sent nothing for {seconds:g} s; {wrong}") from None
        if isinstance(request, Exception):
            raise request
        return request

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
            request = inbox.get()
            assert isinstance(request, RankRequest)
            self.answer(request, error=error)

    def close(self) -> None:
        """Close the connection when its last message has left."""
        self._send(b"")
        self._thread.join(LINGER_SECONDS)
        if not self._thread.is_alive():
            self._sender.close()
            self._context.term()

    def _send(self, data: bytes) -> None:
        # The channel thread takes nothing more if it has failed, which the main thread reports.
        with self._sending, contextlib.suppress(zmq.Again):
            self._sender.send(data, copy=False)

    def _run(self) -> None:
        """Let a failure of the channel end the main thread's wait, which reports it."""
        try:
            self._exchange()
        except Exception as error:
            self._inboxes[MAIN].put(error)

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
        self.answer(request, error=self._ended.get(request.to, f"there is no thread {request.to}"))


class RankConnections:
    """Hold the listening socket. Construct it inside a running loop.

    Run `admit` meanwhile, without which ZeroMQ admits no connection.

    Args:
        trust: secrets of the run.
        host: address to listen on.
    """

    def __init__(self, trust: RunSecrets, host: str) -> None:
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

    async def send(self, rank: int, request: RankRequest) -> None:
        """Send a request to a rank. If its connection is gone it has died, which its launcher reports."""
        if rank not in self._identities:
            return
        try:
            await self._socket.send_multipart([self._identities[rank], channel.encode(request)], copy=False)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise


HANDSHAKE_MILLISECONDS = 10_000  # of a connection that has not said who it is
USER = "rank"
ZAP = "inproc://zeromq.zap.01"  # where ZeroMQ asks who may connect, see rfc.zeromq.org/spec/27


class KeyPair(NamedTuple):
    """Hold a CURVE key pair, in ZeroMQ's notation."""

    public: bytes
    secret: bytes


def server_keys(run_key: str) -> KeyPair:
    """Derive the controller's key pair."""
    return _keys(run_key, "trainer channel, server")


def client_keys(run_key: str) -> KeyPair:
    """Derive the key pair that all ranks of the run share."""
    return _keys(run_key, "trainer channel, client")


def _keys(run_key: str, purpose: str) -> KeyPair:
    secret = z85.encode(derive(run_key, purpose))
    return KeyPair(zmq.curve_public(secret), secret)


def password(run_key: str) -> str:
    """Derive what a rank shows on loopback."""
    return derive(run_key, "trainer channel, password").hex()


def is_encrypted(address: str) -> bool:
    """Return whether connections to `address` are encrypted.

    >>> is_encrypted("tcp://127.0.0.1:4000"), is_encrypted("tcp://10.0.0.7:4000"), is_encrypted("tcp://[::1]:4000")
    (False, True, False)
    """
    return not is_loopback(urlsplit(address).hostname or "")


def guard_server(socket: "zmq.Socket[Any]", address: str, run_key: str) -> None:
    """Have a socket that will be bound to `address` accept only those whom AdmissionByKey admits."""
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MILLISECONDS)
    if not is_encrypted(address):
        socket.setsockopt(zmq.PLAIN_SERVER, 1)
        return
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, server_keys(run_key).secret)


def show_key(socket: "zmq.Socket[Any]", address: str, run_key: str) -> None:
    """Have a socket that will be connected to `address` show that it knows the run key.

    Beyond loopback it talks only to the controller of the run.
    """
    if not is_encrypted(address):
        socket.setsockopt(zmq.PLAIN_USERNAME, USER.encode())
        socket.setsockopt(zmq.PLAIN_PASSWORD, password(run_key).encode())
        return
    keys = client_keys(run_key)
    socket.setsockopt(zmq.CURVE_SERVERKEY, server_keys(run_key).public)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)


class AdmissionByKey:
    """Decide for the sockets of a context who may connect: whoever proves to know the run key.

    ZeroMQ asks during each handshake, before it takes a message of the connection. If nobody answers, none is admitted.
    Make it before those sockets are bound, because ZeroMQ admits everybody where there is nobody to ask.
    """

    def __init__(self, context: zmq.asyncio.Context, run_key: str) -> None:
        self._secrets = {
            b"PLAIN": password(run_key).encode(),
            b"CURVE": z85.decode(client_keys(run_key).public),
        }
        self._questions = context.socket(zmq.REP)
        self._questions.bind(ZAP)

    async def run(self) -> NoReturn:
        """Answer for each connection. Waits for the next; unblocked by it."""
        while True:
            version, number, _domain, _address, _identity, mechanism, *shown = await self._questions.recv_multipart()
            secret = self._secrets.get(mechanism)
            # In constant time, so that a stranger cannot find it byte by byte.
            knows = secret is not None and hmac.compare_digest(secret, shown[-1])
            status = [b"200", b"OK"] if knows else [b"400", b"it does not know the run key"]
            await self._questions.send_multipart([version, number, *status, b"", b""])
