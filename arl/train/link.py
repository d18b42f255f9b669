"""A rank's socket to the controller; each thread has its own."""

import os

import zmq
from msgspec import Struct

from arl.launch.child import RUN_KEY
from arl.train import channel
from arl.train.channel import Hello

LINGER_SECONDS = 10.0  # for the last message to leave


class Link:
    """Says hello when it is made.

    Args:
        role: "trainer", or what a thread of rank 0 is called.
        context: None: the one that is destroyed at the end, when nobody may wait in it any more.
    """

    def __init__(self, role: str, context: "zmq.Context[zmq.Socket[bytes]] | None" = None) -> None:
        self.rank = int(os.environ["RANK"])
        self._socket: zmq.Socket[bytes] = (context or zmq.Context.instance()).socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, int(LINGER_SECONDS * 1000))
        self._socket.connect(os.environ[channel.ADDRESS])
        self.send(Hello(role, self.rank, os.environ[RUN_KEY]))

    def send(self, message: Struct) -> None:
        self._socket.send(channel.encode(message))

    def receive(self, seconds: float | None = None) -> channel.ToRank:
        """The controller's next word; without a deadline, the controller's life is ours (see `die_with_parent`)."""
        if seconds is not None and not self._socket.poll(int(seconds * 1000)):
            raise TimeoutError(f"the controller said nothing for {seconds:g} s after hello")
        return channel.decode_to_rank(self._socket.recv())

    def close(self) -> None:
        self._socket.close()
