"""Process groups that weights are broadcast in: rank 0 is the trainer's, the others are one engine's.

    trainer: listen ─► port ─► Group ─► broadcast …
    engine:                   Receiver.join ─► receive, bucket by bucket ─► take: all of them

Keys and bytes are those of SGLang, whose workers join in the engine's place. There is one group for each life of an
engine, outside of torch's registry: one that is lost takes nobody along.
"""

import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store, TCPStore

from arl.engine.http import wire
from arl.errors import EngineError
from arl.sync.buckets import ITEM_BYTES, TensorSpec
from arl.sync.loading import unflatten
from arl.sync.weight_loader import BUCKETS

ENGINE_SECONDS = 600.0  # an engine that waits longer has long been given up


def listen(seconds: float, host: str, port: int = 0) -> tuple[Store, int]:
    """The store where a group meets, and its port; torch's own socket would listen beyond `host`."""
    listener = socket.create_server((host, port))
    port = listener.getsockname()[1]
    store = TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=seconds),
        master_listen_fd=listener.detach(),
    )
    return store, port


class Group:
    """One rank of a group; made when the others have come, with NCCL before that.

    Args:
        backend: gloo, or nccl: then tensors travel by way of this process's GPU.
        seconds: after which every wait of it ends, by a RuntimeError.
    """

    def __init__(self, store: Store, name: str, rank: int, size: int, backend: str, seconds: float) -> None:
        timeout, on_gpu = timedelta(seconds=seconds), backend == "nccl"
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        # Of its own, since the trainer computes in the default one.
        self._stream = torch.cuda.Stream() if on_gpu else None  # type: ignore[no-untyped-call]
        # The prefixes under which init_process_group would look for the others.
        for prefix in (name, f"{name}/", f"{self.device.type}/"):
            store = PrefixStore(prefix, store)
        if on_gpu:
            # Else its watchdog would end this process when the other end is lost; read when a group is made.
            os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
            from torch._C._distributed_c10d import ProcessGroupNCCL  # which builds for CPUs lack

            options = ProcessGroupNCCL.Options()
            options._timeout = timeout
            self._group: Any = ProcessGroupNCCL(store, rank, size, options)
        else:
            self._group = ProcessGroupGloo(store, rank, size, timeout)

    def broadcast(self, flat: Tensor) -> Tensor:
        """Rank 0's `flat` on every rank's device; returns when it is sent, or has come."""
        if self._stream is not None and flat.is_cuda:  # its memory may have been that of a pass under way
            self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            flat = flat.to(self.device, non_blocking=True)
            self._group.broadcast(flat, 0).wait()
        if self._stream is not None:
            self._stream.synchronize()
        return flat


class Receiver:
    """An engine's end: what has come waits in tensors of its own until all of it is here. Methods block."""

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}
        self._staged: dict[str, Tensor] = {}

    def join(self, body: wire.InitGroup) -> None:
        """Raises EngineError: nobody there."""
        try:
            store = TCPStore(body.master_address, body.master_port, timeout=timedelta(seconds=ENGINE_SECONDS))
            group = Group(store, body.group_name, body.rank_offset, body.world_size, body.backend, ENGINE_SECONDS)
        except RuntimeError as error:
            raise EngineError(f"group {body.group_name}: it cannot be joined ({error})") from error
        self._groups[body.group_name] = group

    def receive(self, body: wire.UpdateFromDistributed) -> None:
        """Stage one bucket, whose names and shapes are the model's.

        Raises:
            EngineError: not a bucket, no such group, or the sender has gone.
        """
        if body.load_format != BUCKETS:
            raise EngineError(f"load_format {body.load_format}: only {BUCKETS} is understood")
        if body.group_name not in self._groups:
            raise EngineError(f"group {body.group_name} is not one of {sorted(self._groups)}: join it first")
        bucket = bucket_of(body)
        group = self._groups[body.group_name]
        flat = torch.empty(sum(spec.num_bytes for spec in bucket), dtype=torch.uint8, device=group.device)
        try:
            self._staged |= unflatten(group.broadcast(flat), bucket)
        except RuntimeError as error:
            raise EngineError(f"group {body.group_name}: the broadcast broke off ({error})") from error

    def take(self) -> dict[str, Tensor]:
        """All that has come since the last time."""
        staged, self._staged = self._staged, {}
        return staged


def bucket_of(body: wire.UpdateFromDistributed) -> Sequence[TensorSpec]:
    """Raises EngineError: its lists do not belong together, or a dtype is unknown."""
    if not len(body.names) == len(body.dtypes) == len(body.shapes):
        raise EngineError(f"{len(body.names)} names, {len(body.dtypes)} dtypes and {len(body.shapes)} shapes")
    if unknown := set(body.dtypes) - ITEM_BYTES.keys():
        raise EngineError(f"dtype {min(unknown)}: choose one of {', '.join(ITEM_BYTES)}")
    return [TensorSpec(*spec) for spec in zip(body.names, body.dtypes, map(tuple, body.shapes), strict=True)]
