"""A rank's socket to the controller. Each thread has its own, because a socket may be used by one thread only."""

import os
import platform

import zmq
from msgspec import Struct

from arl.launch.child import RUN_KEY
from arl.train import channel
from arl.train.channel import Hello

LINGER_SECONDS = 10.0  # for the last message to leave


class Link:
    """A connection to the controller, which says hello when it is made.

    Args:
        role: "trainer", or what a thread of rank 0 is called.
        context: ZeroMQ's; None: the common one, which is destroyed at the end, when no thread may wait in it any more.
    """

    def __init__(self, role: str, context: "zmq.Context[zmq.Socket[bytes]] | None" = None) -> None:
        self.rank = int(os.environ["RANK"])
        self._socket: zmq.Socket[bytes] = (context or zmq.Context.instance()).socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, int(LINGER_SECONDS * 1000))
        self._socket.connect(os.environ[channel.ADDRESS])
        self.send(Hello(role, self.rank, os.environ[RUN_KEY], host=platform.node(), pid=os.getpid()))

    def send(self, message: Struct) -> None:
        """Send a message without waiting for the controller."""
        self._socket.send(channel.encode(message))

    def receive(self, seconds: float | None = None) -> channel.ToRank:
        """Wait for the controller's next message.

        Args:
            seconds: deadline; None: wait as long as the controller lives, with which this process dies.

        Raises:
            TimeoutError: `seconds` passed.
        """
        if seconds is not None and not self._socket.poll(int(seconds * 1000)):
            raise TimeoutError(f"the controller did not answer hello within {seconds:g} s")
        return channel.decode_to_rank(self._socket.recv())

    def close(self) -> None:
        """Close the connection when its last message has left."""
        self._socket.close()
