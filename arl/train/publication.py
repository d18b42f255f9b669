"""Publish this rank's part of every version: what blocks training, and what goes on in threads.

step ─► reserve memory ─► gather into it (collective) ─► [ipc: share it; wait until every rank has] ─► rank 0: Publisher

    transport   who keeps buckets               where
    file        rank 0, until they are written  host memory, pinned where there is a GPU
    broadcast   rank 0, two versions            its GPU where they fit, else host memory
    ipc         the ranks that engines read     their GPUs, two versions; on a CPU mapped files
"""

import contextlib
import functools
import threading
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from arl.launch.network import listening_address
from arl.models.load import DTYPES
from arl.sync.buckets import TensorSpec, bucket_bytes_of, make_buckets
from arl.sync.choose import FILE_BUFFERS, BufferPlace, buffer_place
from arl.sync.group_sender import GroupBackend
from arl.sync.ipc import IpcTarget
from arl.sync.loading import unflatten_all
from arl.sync.process_group import Group, serve_store
from arl.sync.publisher import Announce, Publisher
from arl.sync.targets import BroadcastTarget, FileTarget
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
            seconds = init.broadcast_seconds
            self._link.open(SENDERS)
            self._link.open(CLAIMS)
            arguments = (self._link, target, listening_address(), seconds)
            threading.Thread(target=_serve_joins, args=arguments, name=SENDERS, daemon=True).start()
            threading.Thread(target=_serve_claims, args=(self._link, target, seconds), name=CLAIMS, daemon=True).start()
            return target
        assert init.transport == "file", f"a process cannot publish by {init.transport}"
        allocate = functools.partial(allocate_buckets, self._buckets, "host")
        self._file_buffers = VersionBuffers(FILE_BUFFERS, allocate, keeps_waiting=init.every_version)
        return FileTarget(directory, self._learner.config_json(), init.for_nodes)


# ---- threads of rank 0 that send weights, while its main thread trains


def _serve_joins(link: Link, target: BroadcastTarget, host: str, seconds: float) -> None:
    """Start a thread for each group of engines.

    Consumes requests for a group; waits for the next; unblocked by it, or by the end of the process.
    """
    while True:
        request = link.receive(SENDERS)
        assert isinstance(request.body, Join)
        link.open(request.body.group, request)  # its own thread answers
        arguments = (link, target, request.body, host, seconds)
        threading.Thread(target=_serve_group, args=arguments, name=request.body.group, daemon=True).start()


def _serve_group(link: Link, target: BroadcastTarget, join: Join, host: str, seconds: float) -> None:
    """Open a group and broadcast in it, until the controller leaves it or it breaks.

    When an engine of the group is lost, the thread ends, at the latest when the deadline of a broadcast has passed.
    That closes rank 0's end of the group, so the others end as well.

    Consumes versions to send; waits for the next; unblocked by it, by Leave, or by the end of the process.
    """
    backend: GroupBackend = "nccl" if torch.cuda.is_available() else "gloo"
    request = link.receive(join.group)
    asked: RankRequest | None = request  # what is not answered yet
    error = ""
    try:
        store = serve_store(host, seconds)
        link.answer(request, Joined(host, store.port, backend))
        asked = None  # if the group breaks now, what is asked next is answered with the error
        with contextlib.closing(Group(store, join.group, 0, join.world_size, backend, seconds)) as group:
            asked = link.receive(join.group)
            while isinstance(asked.body, Send):
                group.send(target.buffers.lend(asked.body.version))
                link.answer(asked)
                asked = link.receive(join.group)
    except Exception as broken:  # whatever it was, it must reach the controller, which waits for an answer
        error = repr(broken)
    if asked is not None:
        link.answer(asked, error=error)
    link.end(join.group, error or "its thread has ended")


def _serve_claims(link: Link, target: BroadcastTarget, seconds: float) -> None:
    """Keep the versions that engines may ask for; `seconds` is the longest wait for one that is being published.

    Consumes the controller's claims; waits for the next; unblocked by it, or by the end of the process.
    """
    while True:
        request = link.receive(CLAIMS)
        assert isinstance(request.body, Claim)
        try:
            version = target.buffers.claim(request.body.version, seconds)
        except Exception as error:
            link.tell(Failed.of(CLAIMS, request.body.version, error))
            raise
        link.answer(request, Claimed(version))
