"""Rank 0's threads that broadcast weights while its main thread trains: one for each engine that lives, and one more.

    Join ─► a thread with a socket and a group of its own ─► Joined(port) ─► the engine's workers come
    Send ─► every bucket of that version, from the outlet ─► Sent        ─► … ─► Leave

An engine that is lost ends its own thread, at the latest when the group's time is over; nobody else notices.
"""

import threading
from typing import Literal

import torch
import zmq

from arl.launch.address import listening_address
from arl.sync.process_group import Group, listen
from arl.sync.targets import BroadcastOutlet
from arl.train.channel import SENDERS, Join, Joined, Send, Sent
from arl.train.link import Link

CONTEXT: "zmq.Context[zmq.Socket[bytes]]" = zmq.Context()  # its sockets wait until the process ends


def start_senders(outlet: BroadcastOutlet, seconds: float) -> None:
    """From here on groups can be joined; each wait of one ends after `seconds`."""
    threading.Thread(target=_listen, args=(outlet, seconds), name=SENDERS, daemon=True).start()


def _listen(outlet: BroadcastOutlet, seconds: float) -> None:
    """Consumes Join; waits for the next; unblocked by it, or by the end of the process."""
    link = Link(SENDERS, CONTEXT)
    while isinstance(message := link.receive(), Join):
        threading.Thread(target=_serve, args=(outlet, message, seconds), name=message.group, daemon=True).start()


def _serve(outlet: BroadcastOutlet, join: Join, seconds: float) -> None:
    """Consumes Send; waits for the next; unblocked by it, by Leave, or by the end of the process."""
    link = Link(join.group, CONTEXT)
    try:
        host = listening_address()
        store, port = listen(seconds, host)
        backend: Literal["gloo", "nccl"] = "nccl" if torch.cuda.is_available() else "gloo"
        link.send(Joined(host, port, backend))
        group = Group(store, join.group, 0, join.world_size, backend, seconds)
        while isinstance(message := link.receive(), Send):
            for flat in outlet.flats(message.version):
                group.broadcast(flat)
            link.send(Sent())
    except Exception as error:  # whatever it was, whoever waits must hear of it
        link.send(Sent(f"{error!r}"))
    finally:
        link.close()
