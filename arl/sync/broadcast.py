"""Broadcast weights from flat buckets in memory, by threads of the trainer's rank 0, while its main thread trains.

    listener       next_group ─► a thread for that group
    group thread   serve_store ─► opened(rendezvous) ─► the engines' workers join
                   next_version ─► broadcast every bucket of it ─► sent ─► … ─► next_version is None: the thread ends

There is one thread for each group, and the listener. When an engine of the group is lost, the thread ends, at the
latest when the deadline of a broadcast has passed. That closes rank 0's end of the group, so the others end as well.
"""

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from arl.sync.buckets import TensorSpec, make_buckets
from arl.sync.choose import BROADCAST_BUFFERS, BufferPlace
from arl.sync.group_sender import GroupBackend, Rendezvous
from arl.sync.process_group import Group, serve_store
from arl.sync.targets import State
from arl.sync.version_buffers import LentBuckets, VersionBuffers, allocate_buckets
from arl.types import WeightUpdate


class BroadcastTarget:
    """Keep the buckets of the newest version and of the one that engines are sent.

    Args:
        bucket_bytes: most bytes of a bucket; a larger tensor has a bucket of its own.
        place: the GPU of this process, or the host's memory.
    """

    def __init__(self, bucket_bytes: int, place: BufferPlace = "host") -> None:
        self._bucket_bytes = bucket_bytes
        self._place: BufferPlace = place
        self._specs: Sequence[TensorSpec] = ()
        self.buffers = VersionBuffers(BROADCAST_BUFFERS, self._allocate)

    def reserve(self, version: int, specs: Sequence[TensorSpec], seconds: float) -> list[Tensor]:
        """Return memory for the buckets of `version`, which the caller fills before `write`.

        Args:
            specs: of all tensors, the same for every version.

        Raises:
            TrainerError: no buffer was free within `seconds`.
        """
        self._specs = specs
        return self.buffers.reserve(version, seconds)

    def write(self, version: int, state: State) -> WeightUpdate:
        """See PublicationTarget. `state` lies in what `reserve` returned."""
        self.buffers.offer(version)
        return WeightUpdate(version, transport="broadcast")

    def discard(self, update: WeightUpdate) -> None:
        """Do nothing, because the memory is used again."""

    def claim(self, version: int, seconds: float) -> int:
        """Keep the newest version, `version` at least, for engines, and return it; see VersionBuffers.claim."""
        return self.buffers.claim(version, seconds)

    def flats(self, version: int) -> LentBuckets:
        """Return the buckets of a version that engines are sent now: (bytes,) uint8 each.

        They are not overwritten while somebody holds this list.

        Raises:
            KeyError: there is no such version.
        """
        return self.buffers.lend(version)

    def _allocate(self) -> list[Tensor]:
        return allocate_buckets(make_buckets(self._specs, self._bucket_bytes), self._place)


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
