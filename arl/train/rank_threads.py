"""Connect rank 0's threads that serve engines with the controller, over the channel.

Join, Send, Leave ─► SenderLink ─► arl.sync.broadcast
Claim(version)    ─► start_claims ─► BroadcastTarget.claim ─► Claimed(the newest version)
"""

import threading

import zmq

from arl.sync.broadcast import BroadcastTarget, GroupRequest
from arl.sync.group_sender import Rendezvous
from arl.train import channel
from arl.train.channel import CLAIMS, SENDERS, Claim, Claimed, Join, Joined, Send, Sent
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


def start_claims(target: BroadcastTarget, seconds: float) -> None:
    """Start the thread that answers the controller's claims: it keeps the versions that engines may ask for.

    Args:
        target: holds the versions.
        seconds: longest wait for a version that is being published.
    """
    threading.Thread(target=_serve_claims, args=(target, seconds), name="claims", daemon=True).start()


def _serve_claims(target: BroadcastTarget, seconds: float) -> None:
    """Consumes claims; waits for the next; unblocked by it, or by the end of the process."""
    link = Link(CLAIMS, context=CONTEXT)
    while isinstance(message := link.receive(), Claim):
        try:
            version = target.claim(message.version, seconds)
        except Exception as error:
            link.send(channel.failed(message.version, error))
            raise
        link.send(Claimed(version))
