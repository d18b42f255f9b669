"""How one server is given new weights, over HTTP and beside it. Torch-free.

    file         the server reads the directory                            /update_weights_from_disk
    ipc          it maps the memory that the handles name, by buckets      /update_weights_from_tensor
    broadcast    it receives from rank 0, by buckets                       /update_weights_from_distributed

A server that stages buckets (ours) receives while it generates; only the copy needs a pause. SGLang loads each bucket
as it comes, so its pause covers all of them. The version is told with the last bucket.
"""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from arl.clock import deadline
from arl.engine.base import WeightSender
from arl.engine.http import wire
from arl.engine.http.connection import Http
from arl.errors import DeadlineError, EngineError, EngineLost
from arl.sync.buckets import TensorSpec
from arl.types import WeightUpdate

BUCKETS = "flattened_bucket"  # SGLang's name for tensors one after the other in one of bytes
HANDLES = "*.handles"  # ipc: one file a bucket, in the order of their names


class WeightLoader:
    """Of one server; `sender` is needed for what is broadcast.

    Args:
        workers: processes of the server that hold a part of the weights.
        seconds: for a whole broadcast; each command has http's own deadline.
    """

    def __init__(self, http: Http, sender: WeightSender | None, workers: int, seconds: float) -> None:
        self._http, self._sender, self._workers, self._seconds = http, sender, workers, seconds
        self._group: str | None = None
        self._given_up: set[Literal["weights", "kv_cache"]] = set()
        self.stages = False  # what the server says of itself
        self.loaded: WeightUpdate | None = None  # None: not asked yet

    async def prepare(self, update: WeightUpdate) -> None:
        """What needs no pause."""
        if update.transport == "broadcast":
            if self._group is None:
                await self._join()
            if self.stages:
                await self._broadcast(update, last_version=None)

    async def load(self, update: WeightUpdate) -> None:
        """The rest, between pause and resume; then the server has `update`.

        Raises:
            EngineError: the server refused.
            EngineLost, DeadlineError: it is gone, too slow, or out of the trainer's reach.
        """
        version = str(update.version)
        await self._take_again("weights")
        if update.transport == "file":
            body = wire.UpdateFromDisk(update.path, version, flush_cache=False)
            await self._http.command("/update_weights_from_disk", body)
        elif update.transport == "ipc":
            await self._hand_over(_handles(update), version)
        elif self.stages:
            await self._receive([], version)
        else:
            await self._broadcast(update, version)
        self.loaded = update

    async def give_up_memory(self) -> None:
        """Hand back memory, for whoever has the device next. The server must be idle: SGLang dies of it otherwise."""
        self._given_up = {"weights", "kv_cache"}
        await self._http.command("/release_memory_occupation", wire.Memory(["weights", "kv_cache"]))

    async def take_memory_again(self) -> None:
        """What is still given up of it."""
        if "weights" in self._given_up:  # no others were loaded, and these come back without their content
            assert self.loaded is not None
            await self.prepare(self.loaded)
            await self.load(self.loaded)
        await self._take_again("kv_cache")

    async def _take_again(self, tag: Literal["weights", "kv_cache"]) -> None:
        """SGLang dies when asked for memory that it has."""
        if tag in self._given_up:
            self._given_up.remove(tag)
            await self._http.command("/resume_memory_occupation", wire.Memory([tag]))

    async def check(self, update: WeightUpdate) -> None:
        """Raises EngineError: the server holds something else than `update`, or does not tell."""
        if update.checksums:
            answer = await self._http.command("/weights_checker", wire.CheckWeights())
            try:
                (rank,) = msgspec.json.decode(answer, type=wire.Checked).ranks
            except (msgspec.DecodeError, ValueError) as error:  # garbage; several workers
                raise EngineError(f"{self._http.url}/weights_checker: {error}: {answer[:200]!r}") from error
            refuse_difference(self._http.url, update, rank.checksums)

    async def close(self) -> None:
        if self._group is not None and self._sender is not None:
            await self._sender.leave(self._group)

    async def _join(self) -> None:
        if self._sender is None:
            raise EngineError(f"{self._http.url}: weights are broadcast, and it was given no sender")
        group, size = f"arl-{secrets.token_hex(8)}", 1 + self._workers
        host, port, backend = await self._sender.join(group, size)
        self._group = group
        body = wire.InitGroup(host, port, 1, size, group, backend)
        await self._http.command("/init_weights_update_group", body)

    async def _broadcast(self, update: WeightUpdate, last_version: str | None) -> None:
        """Rank 0 sends while the server is told, bucket by bucket, to receive."""
        assert self._sender is not None and self._group is not None
        *buckets, last = self._sender.buckets
        what = f"{self._http.url} to receive version {update.version}"
        try:
            async with deadline(self._seconds, "engine client", what), asyncio.TaskGroup() as tasks:
                tasks.create_task(self._sender.send(self._group, update.version))
                for bucket in buckets:
                    await self._receive(bucket, None)
                await self._receive(last, last_version)
        except BaseExceptionGroup as failures:  # of both ends: a loss says more than a refusal
            raise min(failures.exceptions, key=lambda e: not isinstance(e, EngineLost | DeadlineError)) from None

    async def _receive(self, bucket: Sequence[TensorSpec], version: str | None) -> None:
        assert self._group is not None
        names, dtypes = [spec.name for spec in bucket], [spec.dtype for spec in bucket]
        shapes = [list(spec.shape) for spec in bucket]
        body = wire.UpdateFromDistributed(names, dtypes, shapes, self._group, BUCKETS, version, flush_cache=False)
        await self._http.command("/update_weights_from_distributed", body)

    async def _hand_over(self, handles: Sequence[bytes], version: str) -> None:
        for number, bucket in enumerate(handles, 1):
            told = version if number == len(handles) else None
            body = wire.UpdateFromTensor([bucket], told, flush_cache=False)
            await self._http.command("/update_weights_from_tensor", body)


def _handles(update: WeightUpdate) -> list[bytes]:
    """Raises EngineError: there are none."""
    files = sorted(Path(update.path).glob(HANDLES))
    if not files:
        raise EngineError(f"{update.path}: there are no handles of version {update.version}")
    return [file.read_bytes() for file in files]


def refuse_difference(who: str, update: WeightUpdate, found: Mapping[str, str]) -> None:
    """Raises EngineError: names the first weight of which `who` has other values than the trainer published."""
    for name in sorted(update.checksums.keys() | found.keys()):
        if update.checksums.get(name) != found.get(name):
            raise EngineError(
                f"{who}: {name} of version {update.version} is not what the trainer published: its sha256 is "
                f"{found.get(name)}, and should be {update.checksums.get(name)}"
            )
