"""Serve engines from threads of rank 0: those that broadcast, and the one that keeps what they may ask for.

Join, Send, Leave ─► SenderLink ─► arl.sync.broadcast_threads
Claim(version)    ─► start_claims ─► BroadcastTarget.claim ─► Claimed(the newest version)
"""

import threading

from arl.sync.broadcast_target import BroadcastTarget
from arl.sync.broadcast_threads import GroupRequest
from arl.sync.weight_sender import Rendezvous
from arl.train.channel import CLAIMS, SENDERS, Claim, Claimed, Failed, Join, Joined, Request, Send
from arl.train.link import Link


class SenderLink:
    """Implement BroadcastLink over the link of this process.

    Args:
        group: name of the group that the thread serves; None for the thread that waits for engines to join.
    """

    def __init__(self, link: Link, group: str | None) -> None:
        self._link = link
        self._group = group or SENDERS
        self._request: Request | None = None  # that is under way
        self._error = "its thread has ended"

    def next_group(self) -> GroupRequest:
        """See BroadcastLink. The group's own thread answers the request, which is the first in its inbox."""
        request = self._link.receive(SENDERS)
        assert isinstance(request.body, Join)
        self._link.open(request.body.group, request)
        return GroupRequest(request.body.group, request.body.world_size)

    def opened(self, rendezvous: Rendezvous) -> None:
        join = self._link.receive(self._group)
        self._link.answer(join, Joined(rendezvous.host, rendezvous.port, rendezvous.backend))

    def next_version(self) -> int | None:
        self._request = self._link.receive(self._group)
        body = self._request.body
        if isinstance(body, Send):
            return body.version
        self.sent()  # it was Leave
        return None

    def sent(self, error: str = "") -> None:
        """See BroadcastLink. A group that broke while nothing was asked of it answers what is asked next."""
        if error:
            self._error = error
        if self._request is not None:
            self._link.answer(self._request, error=error)
        self._request = None

    def close(self) -> None:
        self._link.end(self._group, self._error)


def start_claims(link: Link, target: BroadcastTarget, seconds: float) -> None:
    """Start the thread that answers the controller's claims: it keeps the versions that engines may ask for.

    Args:
        target: holds the versions.
        seconds: longest wait for a version that is being published.
    """
    link.open(CLAIMS)
    threading.Thread(target=_serve_claims, args=(link, target, seconds), name=CLAIMS, daemon=True).start()


def _serve_claims(link: Link, target: BroadcastTarget, seconds: float) -> None:
    """Consumes claims; waits for the next; unblocked by it, or by the end of the process."""
    while True:
        request = link.receive(CLAIMS)
        assert isinstance(request.body, Claim)
        try:
            version = target.claim(request.body.version, seconds)
        except Exception as error:
            link.tell(Failed.of(CLAIMS, request.body.version, error))
            raise
        link.answer(request, Claimed(version))
