"""Connect a rank to the controller. Each thread has its own link, because a socket may be used by one thread only."""

import os
import platform

import zmq
from msgspec import Struct

from arl.launch.child import RUN_KEY
from arl.train import channel
from arl.train.channel import Hello, Left
from arl.train.channel_access import show_key

LINGER_SECONDS = 10.0  # for the last message to leave


class Link:
    """Send messages to the controller and receive its own. The first message is Hello, the last one Left.

    Args:
        role: "trainer", or the name of a thread.
        meeting: where the ranks meet, if this is the main thread of rank 0.
        context: of ZeroMQ. None: the process's own, which is destroyed at the end, so that no thread may still wait
            for a message of it then.
    """

    def __init__(
        self,
        role: str,
        *,
        meeting: tuple[str, int] = ("", 0),
        context: "zmq.Context[zmq.Socket[bytes]] | None" = None,
    ) -> None:
        self.rank = int(os.environ["RANK"])
        context = context or zmq.Context.instance()
        self._socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, int(LINGER_SECONDS * 1000))
        self._socket.setsockopt(zmq.SNDTIMEO, int(LINGER_SECONDS * 1000))  # to a controller that has refused the key
        self._address = os.environ[channel.ADDRESS]
        show_key(self._socket, self._address, os.environ[RUN_KEY])
        self._socket.connect(self._address)
        hello = Hello(
            role=role,
            rank=self.rank,
            host=platform.node(),
            pid=os.getpid(),
            address=meeting[0],
            port=meeting[1],
        )
        self.send(hello)

    def send(self, message: Struct) -> None:
        """Send a message without waiting for the controller."""
        self._socket.send(channel.encode(message), copy=False)

    def receive(self, seconds: float | None = None) -> channel.ToRank:
        """Wait for the controller's next message.

        Args:
            seconds: deadline. None: there is none, because this process dies with the controller.

        Raises:
            TimeoutError: `seconds` passed.
        """
        if seconds is not None and not self._socket.poll(int(seconds * 1000)):
            wrong = "it may have another run key and refuse ours"
            raise TimeoutError(f"the controller at {self._address} sent nothing for {seconds:g} s; {wrong}")
        return channel.decode_to_rank(self._socket.recv())

    def close(self) -> None:
        """Say that this connection ends, and close it when its last message has left."""
        self.send(Left())
        self._socket.close()
