"""Answer the controller's claims in a thread of rank 0: it keeps the versions that engines may ask for.

Claim(version) ─► BroadcastTarget.claim ─► Claimed(the newest version)
"""

import threading

from arl.sync.broadcast_target import BroadcastTarget
from arl.train import channel
from arl.train.channel import Claim, Claimed
from arl.train.link import Link
from arl.train.sender_link import CONTEXT


def start_claims(target: BroadcastTarget, seconds: float) -> None:
    """Start the thread.

    Args:
        target: holds the versions.
        seconds: longest wait for a version that is being published.
    """
    threading.Thread(target=_serve, args=(target, seconds), name="claims", daemon=True).start()


def _serve(target: BroadcastTarget, seconds: float) -> None:
    """Consumes claims; waits for the next; unblocked by it, or by the end of the process."""
    link = Link(channel.CLAIMS, context=CONTEXT)
    while isinstance(message := link.receive(), Claim):
        try:
            version = target.claim(message.version, seconds)
        except Exception as error:
            link.send(channel.failed(message.version, error))
            raise
        link.send(Claimed(version))
