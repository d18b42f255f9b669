"""Broadcast weights in process groups of their own: rank 0 is the trainer's, the others are workers of engines.

    trainer: serve_store ─► port ─► Group ────────────────────────────► broadcast, bucket by bucket
    engine:                         Receiver.join ─► its own Group ────► receive, bucket by bucket

Keys in the store and bytes on the wire are those of SGLang, whose workers take the place of `Receiver`. Groups lie
outside of torch's registry, so that one that breaks leaves nothing behind.

The ranks of a group find each other through torch's TCPStore, which knows no key: on several nodes whoever reaches the
network of the run reaches it, as in torch.
"""

import math
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store, TCPStore

from arl.errors import EngineError
from arl.launch.network import free_listener
from arl.sync.buckets import TensorSpec, bucket_bytes_of
from arl.sync.loading import unflatten_all

AGAIN_SECONDS = 0.05  # between two attempts to connect
AHEAD = 1  # buckets that are on their way beside the one that is waited for


def serve_store(host: str, seconds: float, port: int = 0) -> TCPStore:
    """Open a store, which lasts as long as it is referred to.

    Args:
        host: the only address it listens on; the socket that torch would make listens on all of them.
        seconds: deadline of each wait for the store.
        port: 0 takes a free one.
    """
    listener = socket.create_server((host, port)) if port else free_listener(host)
    listener.listen()
    return TCPStore(
        host,
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=seconds),
        master_listen_fd=listener.detach(),
    )


def reach_store(host: str, port: int, seconds: float) -> TCPStore:
    """Connect to a store that another rank serves, as soon as somebody listens there.

    Torch itself would write the frames of its C++ into the log at each attempt.

    Raises:
        RuntimeError: nobody listens there within `seconds`, or there is no such address.
    """
    end = time.monotonic() + seconds
    while True:
        left = max(AGAIN_SECONDS, end - time.monotonic())
        try:
            socket.create_connection((host, port), left).close()
            return TCPStore(host, port, timeout=timedelta(seconds=left))
        except (OSError, ValueError) as error:  # ValueError: no name of any host
            is_over = time.monotonic() + AGAIN_SECONDS >= end
            if is_over or isinstance(error, ValueError):
                raise RuntimeError(f"nobody answers at {host}:{port}: {error}") from error
        time.sleep(AGAIN_SECONDS)


class Group:
    """Join a process group as one of its ranks.

    The constructor broadcasts one byte, because NCCL makes its communicator, which takes seconds, at the first
    broadcast: here no weights are lent yet.

    Args:
        store: where the ranks find each other.
        name: of the group.
        rank: 0 is the trainer's.
        size: number of ranks.
        backend: gloo or nccl; with nccl tensors travel by way of this process's GPU.
        seconds: deadline of each wait of the group, after which it raises a RuntimeError.

    Raises:
        RuntimeError: another rank did not come, or is gone.
    """

    def __init__(self, store: Store, name: str, rank: int, size: int, backend: str, seconds: float) -> None:
        timeout = timedelta(seconds=seconds)
        on_gpu = backend == "nccl"
        self._receives = rank > 0
        self.device = torch.device("cpu")
        self._stream: torch.cuda.Stream | None = None
        if on_gpu:
            self.device = torch.device("cuda", torch.cuda.current_device())
            # A stream of its own, because the trainer computes in the default one.
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        # SGLang calls init_process_group, which looks for the other ranks under these prefixes.
        for prefix in (name, f"{name}/", f"{self.device.type}/"):
            store = PrefixStore(prefix, store)
        self._beginning = threading.Lock()
        self._group: Any
        if on_gpu:
            self._group = _nccl_group(store, rank, size, timeout)
        else:
            self._group = ProcessGroupGloo(store, rank, size, timeout)
        try:
            self.send([torch.zeros(1, dtype=torch.uint8)])
        except RuntimeError:
            self.close()
            raise

    def send(self, flats: Iterable[Tensor]) -> None:
        """Do `broadcast`, and keep none of what it yields."""
        deque(self.broadcast(flats), maxlen=0)

    def broadcast(self, flats: Iterable[Tensor]) -> Iterator[Tensor]:
        """Send rank 0's `flats`, which are complete, to all ranks, which have as many of the same sizes.

        Yields:
            Each, in order, on this rank's device, once it is sent or received. AHEAD more are on their way meanwhile.

        Raises:
            RuntimeError: another rank is gone, or the group is closed.
        """
        coming: deque[tuple[Tensor, Any]] = deque()
        for flat in flats:
            coming.append(self._begin(flat))
            if len(coming) > AHEAD:
                yield self._end(*coming.popleft())
        while coming:
            yield self._end(*coming.popleft())

    def _begin(self, flat: Tensor) -> tuple[Tensor, Any]:
        """Begin a broadcast; return `flat` on this rank's device, and what waits for it.

        The latter refers to the group no longer, so that `close` can.
        """
        if self._stream is not None and self._receives and flat.is_cuda:
            # A computation under way may still use this memory. What rank 0 sends is complete; to wait for its default
            # stream would be to wait for the training step that is queued there.
            self._stream.wait_stream(torch.cuda.current_stream())
        with self._beginning, torch.cuda.stream(self._stream):
            group = self._group
            if group is None:
                raise RuntimeError("this rank has left the group")
            flat = flat.to(self.device, non_blocking=True)
            work = group.broadcast(flat, 0)
            del group
            return flat, work

    def _end(self, flat: Tensor, work: Any) -> Tensor:
        with torch.cuda.stream(self._stream):  # which waits as well, and not the stream that computes
            work.wait()
        return flat

    def close(self) -> None:
        """Close this rank's connections, so that what other ranks wait for here breaks off.

        With gloo this waits for a broadcast that is under way in another thread, at most until that one's deadline.
        """
        group = self._group
        self._group = None
        if self._stream is not None:
            group.abort()
        with self._beginning:  # NCCL's abort has ended what may have hung there
            del group  # which closes one of gloo, because nobody else refers to it


def _nccl_group(store: Store, rank: int, size: int, timeout: timedelta) -> Any:
    """Make a group whose failures raise an error in the thread that uses it."""
    # Each wait then ends when all bytes are there, or with an error: NCCL's watchdog would end this process when the
    # other end is lost. The variable is read when a group is made.
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
    from torch._C._distributed_c10d import ProcessGroupNCCL  # torch built for CPUs does not have it

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    # Else a communicator whose other end died while it was made would be waited for without a deadline.
    options.config.blocking = 0
    os.environ["TORCH_NCCL_NONBLOCKING_TIMEOUT"] = str(math.ceil(timeout.total_seconds()))
    return ProcessGroupNCCL(store, rank, size, options)


class Receiver:
    """Receive weights at an engine's end. `join`, `receive` and `leave` block, and any thread may call them.

    Args:
        seconds: deadline of each wait.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._groups: dict[str, Group] = {}

    def join(self, name: str, host: str, port: int, rank: int, world_size: int, backend: str) -> None:
        """Join the group that the trainer has opened, whose store is at `host` and `port`.

        Raises:
            EngineError: nobody answers there.
        """
        try:
            store = reach_store(host, port, self._seconds)
            group = Group(store, name, rank, world_size, backend, self._seconds)
        except (RuntimeError, OSError) as error:
            raise EngineError(f"group {name}: it cannot be joined ({error})") from error
        self._groups[name] = group

    def leave(self, name: str) -> None:
        """Leave a group, which breaks it for the others.

        Raises:
            EngineError: there is no such group, or NCCL cannot close it.
        """
        left = self._groups.pop(name, None)
        if left is None:
            raise EngineError(f"group {name} is not one of {sorted(self._groups)}")
        try:
            left.close()
        except RuntimeError as error:
            raise EngineError(f"group {name}: it was left, and cannot be closed ({error})") from error

    def receive(self, name: str, buckets: Sequence[Sequence[TensorSpec]]) -> dict[str, Tensor]:
        """Receive the tensors of all buckets, whose names and shapes the caller has compared with the model's.

        Raises:
            EngineError: there is no such group, or the sender has gone.
        """
        group = self._groups.get(name)  # once: another thread may leave it
        if group is None:
            raise EngineError(f"group {name} is not one of {sorted(self._groups)}: join it first")
        sizes = map(bucket_bytes_of, buckets)
        flats = (torch.empty(size, dtype=torch.uint8, device=group.device) for size in sizes)
        try:
            return unflatten_all(list(group.broadcast(flats)), buckets)
        except RuntimeError as error:
            raise EngineError(f"group {name}: the broadcast broke off ({error})") from error
