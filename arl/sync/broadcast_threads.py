"""Broadcast weights from threads of the trainer's rank 0, while its main thread trains.

    listener       next_group ─► a thread for that group
    group thread   serve_store ─► opened(rendezvous) ─► the engines' workers join
                   next_version ─► broadcast every bucket of it ─► sent ─► … ─► next_version is None: the thread ends

There is one thread for each group, and the listener. When an engine of the group is lost, the thread ends, at the
latest when the deadline of a broadcast has passed. That closes rank 0's end of the group, so the others end as well.
"""

import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch

from arl.sync.broadcast_target import BroadcastTarget
from arl.sync.process_group import Group
from arl.sync.stores import serve_store
from arl.sync.weight_sender import GroupBackend, Rendezvous


class GroupRequest(NamedTuple):
    """Ask for a new process group: rank 0 and the workers of engines."""

    name: str
    world_size: int


class BroadcastLink(Protocol):
    """Connect one of these threads with the controller. In a run it is arl.train.publication.SenderLink."""

    def next_group(self) -> GroupRequest | None:
        """Wait for the next group that is to be opened; None ends the listener."""

    def opened(self, rendezvous: Rendezvous) -> None:
        """Report where the engines' workers find this thread."""

    def next_version(self) -> int | None:
        """Wait for the next version to broadcast; None ends the thread."""

    def sent(self, error: str = "") -> None:
        """Report that the version was sent, or with `error` why the group cannot be used any more."""

    def close(self) -> None:
        """Close the connection."""


Connect = Callable[[str | None], BroadcastLink]


def start_broadcast_threads(target: BroadcastTarget, connect: Connect, host: str, seconds: float) -> None:
    """Start the listener; from then on groups can be opened.

    Args:
        target: holds the buckets of every version.
        connect: makes a thread's own link, given its group's name; None is the listener.
        host: address to listen on, one that engines can reach.
        seconds: deadline of each wait of a group.
    """
    arguments = (target, connect, host, seconds)
    threading.Thread(target=_serve_joins, args=arguments, name="broadcast listener", daemon=True).start()


def _serve_joins(target: BroadcastTarget, connect: Connect, host: str, seconds: float) -> None:
    """Start a thread for each group.

    Consumes requests for a group; waits for the next; unblocked by it, by None, or by the end of the process.
    """
    link = connect(None)
    while (request := link.next_group()) is not None:
        arguments = (target, connect, request, host, seconds)
        threading.Thread(target=_serve_group, args=arguments, name=request.name, daemon=True).start()


def _serve_group(target: BroadcastTarget, connect: Connect, request: GroupRequest, host: str, seconds: float) -> None:
    """Broadcast to the engines of a group, until the controller leaves it or it breaks."""
    link = connect(request.name)
    error = ""
    try:
        _broadcast(target, link, request, host, seconds)
    except Exception as broken:  # whatever it was, it must reach the controller, which waits for an answer
        error = repr(broken)
    if error:  # rank 0's end of the group is closed by now, so that engines which still receive stop as well
        link.sent(error)
    link.close()


def _broadcast(target: BroadcastTarget, link: BroadcastLink, request: GroupRequest, host: str, seconds: float) -> None:
    """Open a group and broadcast in it.

    Consumes versions to send; waits for the next; unblocked by it, by None, or by the end of the process.
    """
    backend: GroupBackend = "nccl" if torch.cuda.is_available() else "gloo"
    store = serve_store(host, seconds)
    link.opened(Rendezvous(host, store.port, backend))
    group = Group(store=store, name=request.name, rank=0, size=request.world_size, backend=backend, seconds=seconds)
    try:
        while (version := link.next_version()) is not None:
            for flat in target.flats(version):
                group.broadcast(flat)
            link.sent()
    finally:
        group.close()
