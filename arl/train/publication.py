"""Publish this rank's part of every version: what blocks training, and what goes on in threads.

step ─► reserve memory ─► gather into it (collective) ─► [ipc: share it; wait until every rank has] ─► rank 0: Publisher

    transport   who keeps buckets               where
    file        rank 0, until they are written  host memory, pinned where there is a GPU
    broadcast   rank 0, two versions            its GPU where they fit, else host memory
    ipc         the ranks that engines read     their GPUs, two versions; on a CPU mapped files
"""

import functools
import threading
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from arl.launch.network import listening_address
from arl.models.load import DTYPES
from arl.sync.broadcast import BroadcastTarget, GroupRequest, start_broadcast_threads
from arl.sync.buckets import TensorSpec, bucket_bytes_of, make_buckets
from arl.sync.choose import FILE_BUFFERS, BufferPlace, buffer_place
from arl.sync.group_sender import Rendezvous
from arl.sync.ipc import IpcTarget
from arl.sync.loading import unflatten_all
from arl.sync.publisher import Announce, Publisher
from arl.sync.targets import FileTarget
from arl.sync.version_buffers import VersionBuffers, allocate_buckets, free_device_bytes
from arl.train.channel import CLAIMS, SENDERS, Claim, Claimed, Failed, Init, Join, Joined, RankRequest, Send
from arl.train.learner import Learner
from arl.train.link import Link


class Publication:
    """Publish each version of `learner` by the run's transport.

    Args:
        learner: whose weights are published.
        init: says how.
        link: of this process to the controller.
        announce: called on rank 0, in the publisher's thread; see Publisher.
    """

    def __init__(self, learner: Learner, init: Init, link: Link, announce: Announce) -> None:
        self._learner = learner
        self._init = init
        self._link = link
        self._specs: Sequence[TensorSpec] = learner.tensors()
        self._buckets = make_buckets(self._specs, init.bucket_bytes)
        self._file_buffers: VersionBuffers | None = None
        self._target = self._open_target()
        self._publisher: Publisher | None = None
        if link.rank == 0:
            assert self._target is not None
            self._publisher = Publisher(
                self._target,
                init.kept_versions,
                announce=announce,
                every_version=init.every_version,
                checked_as=DTYPES[init.checked_as] if init.checked_as else None,
                buffers=self._file_buffers if isinstance(self._target, FileTarget) else self._target.buffers,
            )

    def publish(self) -> None:
        """Take a snapshot of the present weights and hand it to the publisher. Collective.

        Raises:
            TrainerError: the memory of older versions was needed for as long as a collective may take.
        """
        version = self._learner.version
        flats = self._reserve(version)
        self._learner.policy.gather(self._buckets, flats, everywhere=self._init.transport == "ipc")
        if isinstance(self._target, IpcTarget) and flats is not None:
            self._target.share(version, flats)
        if self._init.transport == "ipc":
            dist.barrier()  # a version is announced only when every rank has shared its own
        if self._publisher is not None:
            assert flats is not None
            self._publisher.publish(version, unflatten_all(flats, self._buckets))

    def close(self, seconds: float) -> None:
        """Finish what is being published.

        Raises:
            TimeoutError: that takes longer than `seconds`.
        """
        if self._publisher is not None:
            self._publisher.close(seconds)

    def _reserve(self, version: int) -> list[Tensor] | None:
        """Return the memory that this rank keeps `version` in; None: it keeps nothing.

        Engines may be restarting meanwhile, or the controller be stopped, which alone ends this step. So a rank waits
        for longer than the controller does.
        """
        seconds = self._init.collective_seconds
        if isinstance(self._target, BroadcastTarget | IpcTarget):
            return self._target.reserve(version, self._specs, seconds)
        return None if self._file_buffers is None else self._file_buffers.reserve(version, seconds)

    def _open_target(self) -> BroadcastTarget | IpcTarget | FileTarget | None:
        """Open what this rank writes to; None: it only takes part in the collective."""
        init = self._init
        directory = Path(init.publish_directory)
        if init.transport == "ipc":
            if self._link.rank >= init.sharing_ranks:
                return None
            return IpcTarget(directory, init.bucket_bytes, init.kept_versions, self._link.rank)
        if self._link.rank != 0:
            return None
        if init.transport == "broadcast":
            place: BufferPlace = "host"
            if torch.cuda.is_available():
                place = buffer_place(bucket_bytes_of(self._specs), free_device_bytes())
            target = BroadcastTarget(init.bucket_bytes, place)
            connect = functools.partial(SenderLink, self._link)
            self._link.open(SENDERS)
            self._link.open(CLAIMS)
            start_broadcast_threads(target, connect, listening_address(), init.broadcast_seconds)
            arguments = (self._link, target, init.broadcast_seconds)
            threading.Thread(target=_serve_claims, args=arguments, name=CLAIMS, daemon=True).start()
            return target
        assert init.transport == "file", f"a process cannot publish by {init.transport}"
        allocate = functools.partial(allocate_buckets, self._buckets, "host")
        self._file_buffers = VersionBuffers(FILE_BUFFERS, allocate, keeps_waiting=init.every_version)
        return FileTarget(directory, self._learner.config_json(), init.for_nodes)


class SenderLink:
    """Implement BroadcastLink over the link of this process.

    Args:
        group: name of the group that the thread serves; None for the thread that waits for engines to join.
    """

    def __init__(self, link: Link, group: str | None) -> None:
        self._link = link
        self._group = group or SENDERS
        self._request: RankRequest | None = None  # that is under way
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


def _serve_claims(link: Link, target: BroadcastTarget, seconds: float) -> None:
    """Keep the versions that engines may ask for; `seconds` is the longest wait for one that is being published.

    Consumes the controller's claims; waits for the next; unblocked by it, or by the end of the process.
    """
    while True:
        request = link.receive(CLAIMS)
        assert isinstance(request.body, Claim)
        try:
            version = target.claim(request.body.version, seconds)
        except Exception as error:
            link.tell(Failed.of(CLAIMS, request.body.version, error))
            raise
        link.answer(request, Claimed(version))
