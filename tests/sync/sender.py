"""Broadcast weights from threads of this process, in the place of a trainer."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from arl.errors import EngineError
from arl.launch.network import LOOPBACK
from arl.sync.buckets import TensorSpec, make_buckets
from arl.sync.group_sender import GroupSender, Rendezvous
from arl.sync.ipc import IpcTarget
from arl.sync.loading import read_weights, specs_of, unflatten_all
from arl.sync.process_group import Group, serve_store
from arl.sync.targets import BroadcastTarget
from arl.types import WeightUpdate

SECONDS = 60.0


def publish(
    target: BroadcastTarget | IpcTarget, bucket_bytes: int, version: int, state: Mapping[str, Tensor]
) -> WeightUpdate:
    """Copy whole tensors into the memory of a target, as the gathering of a rank does, and publish them."""
    specs = specs_of(state)
    flats = target.reserve(version, specs, SECONDS)
    for name, view in unflatten_all(flats, make_buckets(specs, bucket_bytes)).items():
        view.copy_(state[name])
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    if isinstance(target, IpcTarget):
        target.share(version, flats)
    return target.write(version, dict(state))


class ThreadSender:
    """Implement WeightSender with weights that lie in directories, in buckets of `bucket_bytes`.

    Args:
        seconds: deadlines.swap
        host: where engines find its store.
    """

    def __init__(
        self, model: str, bucket_bytes: int = 100_000, seconds: float = 2 * SECONDS, host: str = LOOPBACK
    ) -> None:
        self.shared = GroupSender(self)  # for the clients of all engines
        self._seconds = seconds / 2
        self._host = host
        self._bucket_bytes = bucket_bytes
        self._target = BroadcastTarget(bucket_bytes)
        self._groups: dict[str, asyncio.Task[Group]] = {}
        self.sent: list[str] = []  # the group of each version
        self.on_bucket: Callable[[str], None] = lambda group: None  # called after each
        self.buckets: Sequence[Sequence[TensorSpec]] = make_buckets(specs_of(read_weights(model)), bucket_bytes)

    def publish(self, version: int, model: str | Path) -> WeightUpdate:
        return publish(self._target, self._bucket_bytes, version, read_weights(model))

    async def join(self, group: str, world_size: int) -> Rendezvous:
        end = serve_store(self._host, self._seconds)
        meeting = asyncio.to_thread(Group, end, group, 0, world_size, "gloo", self._seconds)
        self._groups[group] = asyncio.create_task(meeting)
        return Rendezvous(self._host, end.port, "gloo")

    async def send(self, group: str, version: int) -> None:
        self.sent.append(group)
        met = None
        try:
            met = await self._groups[group]
            buckets = met.broadcast(self._target.buffers.lend(version))
            while await asyncio.to_thread(next, buckets, None) is not None:
                self.on_bucket(group)
        except RuntimeError as error:
            if met is not None:
                met.close()
            raise EngineError(f"group {group}: {error}") from error

    async def leave(self, group: str) -> None:
        self._groups.pop(group, None)
