"""Connect a rank to the controller. Each thread has its own link, because a socket may be used by one thread only."""

import os
import platform
import time

import zmq
from msgspec import Struct

from arl.launch.child import RUN_KEY
from arl.train import channel
from arl.train.channel import Hello, Left, Refused
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
        self._role = role
        self._is_refused = False
        context = context or zmq.Context.instance()
        self._socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, int(LINGER_SECONDS * 1000))
        self._address = os.environ[channel.ADDRESS]
        run_key = os.environ[RUN_KEY]
        show_key(self._socket, self._address, run_key)
        self._refusals = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        self._socket.connect(self._address)
        hello = Hello(
            role=role,
            rank=self.rank,
            host=platform.node(),
            pid=os.getpid(),
            address=meeting[0],
            port=meeting[1],
        )
        self._introduce([run_key.encode(), channel.encode(hello)])

    def _introduce(self, frames: list[bytes]) -> None:
        """Send the first message, unless the controller has refused the run key already.

        Then ZeroMQ has given the connection up, and a send that waits would never end.
        """
        try:
            self._socket.send_multipart(frames, flags=zmq.NOBLOCK)
        except zmq.Again:
            self._forget_messages()

    def send(self, message: Struct) -> None:
        """Send a message without waiting for the controller. Nothing is sent to one that has refused the run key."""
        if not self._is_refused:
            self._socket.send_multipart(channel.frames(message))

    def receive(self, seconds: float | None = None) -> channel.ToRank:
        """Wait for the controller's next message.

        Args:
            seconds: deadline. None: there is none, because this process dies with the controller.

        Raises:
            TimeoutError: `seconds` passed.
            PermissionError: the controller has another run key.
            ConnectionError: the network has cut the connection, so that messages may be lost.
        """
        end = None if seconds is None else time.monotonic() + seconds
        data = b""
        while not data:  # by an empty message the controller finds out that the connection stands
            if end is not None and not self._wait_until(end):
                wrong = "it may have another run key and refuse ours"
                raise TimeoutError(f"the controller at {self._address} sent nothing for {seconds:g} s; {wrong}")
            data = self._socket.recv()
        message = channel.decode_to_rank(data)
        if isinstance(message, Refused):
            who = f"{self._role} of rank {self.rank} (pid {os.getpid()} on {platform.node()})"
            raise ConnectionError(f"the controller at {self._address} refuses {who}: {message.reason}")
        return message

    def _wait_until(self, end: float) -> bool:
        """Wait for a message until `end` of the monotonic clock, and return whether there is one."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._refusals, zmq.POLLIN)
        left = max(end - time.monotonic(), 0.0)
        ready = dict(poller.poll(int(left * 1000)))
        if self._refusals in ready:
            self._forget_messages()
            raise PermissionError(f"the controller at {self._address} refuses the run key of this process")
        return bool(ready)

    def _forget_messages(self) -> None:
        """Send nothing from here on, and wait for nothing to leave."""
        self._is_refused = True
        self._socket.setsockopt(zmq.LINGER, 0)

    def close(self) -> None:
        """Say that this connection ends, and close it when its last message has left."""
        self.send(Left())
        self._refusals.close()
        self._socket.close()
