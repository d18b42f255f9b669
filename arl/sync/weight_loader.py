"""Give one server new weights, by commands to it and by what travels beside them. Torch-free.

    file         the server reads the directory
    ipc          it maps the memory that the handles name
    broadcast    it receives from rank 0, by buckets

Each is one request, whatever the size of the model. SGLang loads each bucket as it comes, so its pause covers them all.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

from arl.errors import RunError
from arl.sync.buckets import HANDLES, TensorSpec, refuse_difference
from arl.sync.group_sender import GroupSender, Rendezvous
from arl.types import WeightUpdate

MemoryTag = Literal["weights", "kv_cache"]


class WeightServer(Protocol):
    """Take the commands that concern weights: one server, by its protocol (arl.engine.http.sglang_protocol).

    Each raises EngineError where the server refuses, EngineLost or DeadlineError where it is gone or silent. A server
    that was given a version serves it from then on.
    """

    url: str  # for messages

    async def load_directory(self, path: str, version: int) -> None: ...
    async def map_weights(self, handles: Sequence[bytes], version: int) -> None: ...
    async def join_group(self, name: str, at: Rendezvous, first_rank: int, world_size: int) -> None: ...
    async def receive(self, group: str, buckets: Sequence[Sequence[TensorSpec]], version: int) -> None: ...
    async def leave_group(self, name: str) -> None: ...
    async def release_memory(self, tags: Sequence[MemoryTag]) -> None: ...
    async def resume_memory(self, tag: MemoryTag) -> None: ...
    async def checksums(self) -> dict[str, str]: ...


class WeightLoader:
    """Load published weights into one server, and release its memory for others on its device.

    `prepare`, then a pause, then `load`, then the end of the pause, then `check`.

    Args:
        server: takes the commands, each of which has its own deadline.
        sender: only needed for weights that are broadcast; the loaders of all engines share it.
        workers: number of the server's processes that hold a part of the weights.
        first_rank: the trainer's rank on the device of the first worker; the others follow. For handles, and for order.
    """

    def __init__(self, server: WeightServer, sender: GroupSender | None, workers: int, first_rank: int = 0) -> None:
        self._server = server
        self.first_rank = first_rank
        self._sender = sender
        self.workers = workers
        self._groups: list[str] = []  # process groups that the server has joined
        self._released: set[MemoryTag] = set()
        self.loaded: WeightUpdate | None = None  # None: the server was not asked yet
        self.is_mixed = False  # some of its weights are of the next version
        if sender is not None:
            sender.add(self)

    @property
    def url(self) -> str:
        """Return the address of its server, for messages."""
        return self._server.url

    async def prepare(self, update: WeightUpdate) -> None:
        """Do what needs no pause: a broadcast joins a group with the other engines of the swap."""
        if update.transport == "broadcast":
            assert self._sender is not None
            await self._sender.join(self)

    async def load(self, update: WeightUpdate) -> None:
        """Do the rest, between pause and resume. The server holds `update` afterwards.

        Raises:
            EngineError: the server refused.
            EngineLost, DeadlineError: it is gone, too slow, or out of the trainer's reach.
        """
        await self._resume("weights")
        if update.transport == "file":
            await self._server.load_directory(update.path, update.version)
        elif update.transport == "ipc":
            handles = _handles(update, self.first_rank, self.workers)
            self.is_mixed = True
            await self._server.map_weights(handles, update.version)
        else:
            assert self._sender is not None
            await self._sender.deliver(self, update)
        self.loaded = update
        self.is_mixed = False

    async def release_memory(self) -> None:
        """Release the server's memory for others on its device. The server must be idle, because SGLang dies if not."""
        tags: list[MemoryTag] = ["weights", "kv_cache"]
        self._released = set(tags)
        await self._server.release_memory(tags)

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
            await self._server.resume_memory(tag)

    async def check(self, update: WeightUpdate) -> None:
        """Compare every weight of the server with `update`, if that has checksums.

        Raises:
            EngineError: the server holds something else, or cannot answer.
        """
        if not update.checksums:
            return
        refuse_difference(self._server.url, update, await self._server.checksums())

    async def close(self) -> None:
        """Have the trainer leave the process groups."""
        if self._sender is not None:
            await self._sender.forget(self)

    # ---- what the sender asks of each engine

    async def join_group(self, name: str, at: Rendezvous, first_rank: int, world_size: int) -> None:
        """Have its workers join a group. They leave those that they had joined before."""
        await self.leave_groups()
        self._groups.append(name)
        await self._server.join_group(name, at, first_rank, world_size)

    async def receive(self, group: str, update: WeightUpdate) -> None:
        """Have its workers receive every bucket of `update`, while rank 0 sends them; then the server serves it.

        Raises:
            EngineLost, DeadlineError: it is dead.
            EngineError: it lives, and could not receive.
        """
        assert self._sender is not None
        self.is_mixed = True
        await self._server.receive(group, self._sender.buckets, update.version)

    async def leave_groups(self) -> None:
        """Have its workers leave their groups, so that others stop waiting for them. It never fails."""
        groups = self._groups
        self._groups = []
        for group in groups:
            with contextlib.suppress(RunError):  # it has not joined, or is dead, which its next command reports
                await self._server.leave_group(group)


def _handles(update: WeightUpdate, first_rank: int, workers: int) -> list[bytes]:
    """Read the handles for each worker of a server.

    Worker t is given those of the trainer's rank `first_rank` + t, which is on its device. Where fewer ranks share
    their memory, which only happens on a CPU, workers have ranks in common.
    """
    ranks = sorted(int(folder.name) for folder in Path(update.path).iterdir() if folder.name.isdigit())
    of_workers = [ranks[worker % len(ranks)] for worker in range(first_rank, first_rank + workers)]
    return [Path(update.path, str(rank), HANDLES).read_bytes() for rank in of_workers]
