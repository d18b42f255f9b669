"""Connect the threads that broadcast weights (arl.sync.broadcast_threads) with the controller, over the channel."""

import zmq

from arl.sync.broadcast_threads import GroupRequest
from arl.sync.weight_sender import Rendezvous
from arl.train.channel import SENDERS, Join, Joined, Send, Sent
from arl.train.link import Link

CONTEXT: "zmq.Context[zmq.Socket[bytes]]" = zmq.Context()  # its sockets wait until the process ends


class SenderLink:
    """Implement BroadcastLink. A socket may be used by one thread only, so each thread has a link of its own.

    Args:
        group: name of the group that the thread serves; None for the thread that waits for engines to join.
    """

    def __init__(self, group: str | None) -> None:
        self._link = Link(SENDERS if group is None else group, CONTEXT)

    def next_group(self) -> GroupRequest | None:
        message = self._link.receive()
        return GroupRequest(message.group, message.world_size) if isinstance(message, Join) else None

    def opened(self, rendezvous: Rendezvous) -> None:
        self._link.send(Joined(rendezvous.host, rendezvous.port, rendezvous.backend))

    def next_version(self) -> int | None:
        message = self._link.receive()
        return message.version if isinstance(message, Send) else None

    def sent(self, error: str = "") -> None:
        self._link.send(Sent(error))

    def close(self) -> None:
        self._link.close()
