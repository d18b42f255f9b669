"""Give one server new weights, by commands over HTTP and by what travels beside them. Torch-free.

    file         the server reads the directory                            /update_weights_from_disk
    ipc          it maps the memory that the handles name, by buckets      /update_weights_from_tensor
    broadcast    it receives from rank 0, by buckets                       /update_weights_from_distributed

A server that stages buckets (ours) receives them while it generates, and only the copy needs a pause. SGLang loads
each bucket as it comes, so its pause covers all of them. The last bucket carries the version.
"""

import asyncio
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from arl.clock import deadline
from arl.errors import DeadlineError, EngineError, EngineLost
from arl.sync.buckets import TensorSpec
from arl.sync.verify import refuse_difference
from arl.sync.weight_messages import (
    BUCKETS,
    HANDLES,
    Checked,
    CheckWeights,
    InitGroup,
    Memory,
    MemoryTag,
    UpdateFromDisk,
    UpdateFromDistributed,
    UpdateFromTensor,
)
from arl.sync.weight_sender import WeightSender
from arl.types import WeightUpdate


class Commands(Protocol):
    """Send commands to one server. In a run it is the engine's HTTP connection."""

    @property
    def url(self) -> str:
        """Address of the server, for messages."""

    async def command(self, path: str, body: Any = None) -> bytes:
        """Send `body` to `path` and return the answer.

        Raises:
            EngineError: the server refused.
            EngineLost, DeadlineError: it is gone, or did not answer in time.
        """


class WeightLoader:
    """Load published weights into one server, and release its memory for others on its device.

    `prepare`, then a pause, then `load`, then the end of the pause, then `check`.

    Args:
        server: takes the commands, each of which has its own deadline.
        sender: the trainer; only needed for weights that are broadcast.
        workers: number of the server's processes that hold a part of the weights.
        seconds: deadline of a whole broadcast.
        first_rank: the trainer's rank on the device of the first worker; the others follow. Only needed for handles.
    """

    def __init__(
        self, server: Commands, sender: WeightSender | None, workers: int, seconds: float, first_rank: int = 0
    ) -> None:
        self._server = server
        self._first_rank = first_rank
        self._sender = sender
        self._workers = workers
        self._seconds = seconds
        self._group: str | None = None  # name of the process group that the server has joined
        self._released: set[MemoryTag] = set()
        self.stages = False  # set once the server has said that it stages buckets
        self.loaded: WeightUpdate | None = None  # None: the server was not asked yet

    async def prepare(self, update: WeightUpdate) -> None:
        """Do what needs no pause."""
        if update.transport == "broadcast":
            if self._group is None:
                await self._join()
            if self.stages:
                await self._broadcast(update, last_version=None)

    async def load(self, update: WeightUpdate) -> None:
        """Do the rest, between pause and resume. The server holds `update` afterwards.

        Raises:
            EngineError: the server refused.
            EngineLost, DeadlineError: it is gone, too slow, or out of the trainer's reach.
        """
        version = str(update.version)
        await self._resume("weights")
        if update.transport == "file":
            body = UpdateFromDisk(update.path, version, flush_cache=False)
            await self._server.command("/update_weights_from_disk", body)
        elif update.transport == "ipc":
            handles = _handles(update, self._first_rank, self._workers)
            await self._send_handles(handles, version)
        elif self.stages:
            await self._receive([], version)
        else:
            await self._broadcast(update, version)
        self.loaded = update

    async def release_memory(self) -> None:
        """Release the server's memory for others on its device. The server must be idle, because SGLang dies if not."""
        tags: list[MemoryTag] = ["weights", "kv_cache"]
        self._released = set(tags)
        await self._server.command("/release_memory_occupation", Memory(tags))

    async def resume_memory(self) -> None:
        """Take back what is released. Weights come back without their content, so the last ones are loaded again."""
        if "weights" in self._released:
            assert self.loaded is not None
            await self.prepare(self.loaded)
            await self.load(self.loaded)
        await self._resume("kv_cache")

    async def _resume(self, tag: MemoryTag) -> None:
        """Take back one kind of memory, if it is released: SGLang dies when asked for what it has."""
        if tag in self._released:
            self._released.remove(tag)
            await self._server.command("/resume_memory_occupation", Memory([tag]))

    async def check(self, update: WeightUpdate) -> None:
        """Compare every weight of the server with `update`, if that has checksums.

        Raises:
            EngineError: the server holds something else, or cannot answer.
        """
        if not update.checksums:
            return
        answer = await self._server.command("/weights_checker", CheckWeights())
        try:
            (worker,) = msgspec.json.decode(answer, type=Checked).ranks
        except (msgspec.DecodeError, ValueError) as error:  # another kind of answer, or several workers answered
            raise EngineError(f"{self._server.url}/weights_checker: {error}: {answer[:200]!r}") from error
        refuse_difference(self._server.url, update, worker.checksums)

    async def close(self) -> None:
        """Leave the process group."""
        if self._group is not None and self._sender is not None:
            await self._sender.leave(self._group)

    async def _join(self) -> None:
        """Open a process group of rank 0 and the server's workers."""
        if self._sender is None:
            raise EngineError(f"{self._server.url}: weights are broadcast, and this client was given no sender")
        group = f"arl-{secrets.token_hex(8)}"
        world_size = 1 + self._workers
        rendezvous = await self._sender.join(group, world_size)
        self._group = group
        body = InitGroup(
            master_address=rendezvous.host,
            master_port=rendezvous.port,
            rank_offset=1,
            world_size=world_size,
            group_name=group,
            backend=rendezvous.backend,
        )
        await self._server.command("/init_weights_update_group", body)

    async def _broadcast(self, update: WeightUpdate, last_version: str | None) -> None:
        """Have rank 0 send a version, and meanwhile ask the server, bucket by bucket, to receive it.

        Args:
            last_version: sent with the last bucket, so that the version takes effect; None: it takes effect later
        """
        assert self._sender is not None
        assert self._group is not None
        *buckets, last = self._sender.buckets
        what = f"{self._server.url} to receive version {update.version}"
        try:
            async with deadline(self._seconds, "engine client", what), asyncio.TaskGroup() as tasks:
                tasks.create_task(self._sender.send(self._group, update.version))
                for bucket in buckets:
                    await self._receive(bucket, None)
                await self._receive(last, last_version)
        except BaseExceptionGroup as failures:
            # Both ends may fail. The loss of an engine explains a refusal, so it is the one that is raised.
            losses = [error for error in failures.exceptions if isinstance(error, EngineLost | DeadlineError)]
            first, *_ = losses or failures.exceptions
            raise first from None

    async def _receive(self, bucket: Sequence[TensorSpec], version: str | None) -> None:
        """Ask the server to receive `bucket`, and with a `version` to serve all that it has received."""
        assert self._group is not None
        body = UpdateFromDistributed(
            names=[spec.name for spec in bucket],
            dtypes=[spec.dtype for spec in bucket],
            shapes=[list(spec.shape) for spec in bucket],
            group_name=self._group,
            load_format=BUCKETS,
            weight_version=version,
            flush_cache=False,
        )
        await self._server.command("/update_weights_from_distributed", body)

    async def _send_handles(self, handles: Sequence[Sequence[bytes]], version: str) -> None:
        """Ask the server to map each bucket; the last one carries the version.

        Args:
            handles: of each bucket, those for each worker. They are of whole tensors, of which a worker takes its part.
        """
        last = len(handles) - 1
        for number, bucket in enumerate(handles):
            weight_version = version if number == last else None
            body = UpdateFromTensor(list(bucket), weight_version, flush_cache=False)
            await self._server.command("/update_weights_from_tensor", body)


def _handles(update: WeightUpdate, first_rank: int, workers: int) -> list[tuple[bytes, ...]]:
    """Read the handles of all buckets, in order: of each bucket, those for each worker of a server.

    Worker t is given those of the trainer's rank `first_rank` + t, which is on its device. Where fewer ranks share
    their memory, which only happens on a CPU, workers have ranks in common.

    Raises:
        EngineError: there are none.
    """
    ranks = sorted(int(folder.name) for folder in Path(update.path).iterdir() if folder.name.isdigit())
    if not ranks:
        raise EngineError(f"{update.path}: there are no handles of version {update.version}")
    of_workers = []
    for worker in range(first_rank, first_rank + workers):
        rank = ranks[worker % len(ranks)]
        files = sorted(Path(update.path, str(rank)).glob(f"*{HANDLES}"))
        of_workers.append([file.read_bytes() for file in files])
    return list(zip(*of_workers, strict=True))
