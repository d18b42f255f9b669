"""Connect the threads that broadcast weights (arl.sync.broadcast_threads) with the controller, over the channel."""

import zmq

from arl.sync.broadcast_threads import GroupRequest
from arl.sync.weight_sender import Rendezvous
from arl.train.channel import SENDERS, Join, Joined, Send, Sent
from arl.train.link import Link

# These threads wait for messages until the process exits. The common context could not be destroyed under them.
CONTEXT: "zmq.Context[zmq.Socket[bytes]]" = zmq.Context()


class SenderLink:
    """Implement BroadcastLink. A socket may be used by one thread only, so each thread has a link of its own.

    Args:
        group: name of the group that the thread serves; None for the thread that waits for engines to join.
    """

    def __init__(self, group: str | None) -> None:
        role = SENDERS if group is None else group
        self._link = Link(role, context=CONTEXT)

    def next_group(self) -> GroupRequest | None:
        message = self._link.receive()
        if isinstance(message, Join):
            return GroupRequest(message.group, message.world_size)
        return None

    def opened(self, rendezvous: Rendezvous) -> None:
        joined = Joined(
            host=rendezvous.host,
            port=rendezvous.port,
            backend=rendezvous.backend,
        )
        self._link.send(joined)

    def next_version(self) -> int | None:
        message = self._link.receive()
        if isinstance(message, Send):
            return message.version
        return None

    def sent(self, error: str = "") -> None:
        self._link.send(Sent(error))

    def close(self) -> None:
        self._link.close()
