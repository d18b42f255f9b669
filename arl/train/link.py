"""Connect a trainer rank to the controller: one socket, which all of the rank's threads share.

a thread ─► answer, tell ─► queue ─► [channel thread: the only one that uses the socket] ─► controller
controller ─► Request(to) ─► [channel thread] ─► inbox of the thread `to` ─► receive

A request to a thread that has ended is answered at once with why it has ended.
"""

import contextlib
import os
import platform
import threading
from queue import Empty, SimpleQueue

import zmq
from msgspec import Struct

from arl.launch.child import RUN_KEY
from arl.train import channel
from arl.train.channel import MAIN, Answer, Hello, Request
from arl.train.channel_access import show_key

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
        self._inboxes: dict[str, SimpleQueue[Request | Exception]] = {MAIN: SimpleQueue()}
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

    def open(self, name: str, first: Request | None = None) -> None:
        """Take requests to the thread `name` from now on, which may start later; `first` is its first one."""
        inbox: SimpleQueue[Request | Exception] = SimpleQueue()
        if first is not None:
            inbox.put(first)
        self._inboxes[name] = inbox

    def receive(self, name: str = MAIN, seconds: float | None = None) -> Request:
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

    def answer(self, request: Request, body: Struct | None = None, error: str = "") -> None:
        """Answer a request, with `error` if it was not done."""
        self.tell(Answer(request.id, body, error))  # type: ignore[arg-type]

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
            assert isinstance(request, Request)
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

    def _deliver(self, request: Request) -> None:
        with self._delivering:
            inbox = self._inboxes.get(request.to)
            if inbox is not None:
                inbox.put(request)
                return
        self.answer(request, error=self._ended.get(request.to, f"there is no thread {request.to}"))
