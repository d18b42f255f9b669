"""Imitate servers that are broadcast to: groups that break when a member dies or leaves, in one process."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from arl.errors import EngineError, EngineLost
from arl.sync.buckets import TensorSpec
from arl.sync.group_sender import Rendezvous


@dataclass
class Channel:
    """Hold one group: who has joined, and how many buckets of which version rank 0 has sent."""

    world_size: int
    ranks: dict[int, int] = field(default_factory=dict)  # rank -> server
    broken: asyncio.Event = field(default_factory=asyncio.Event)
    moved: asyncio.Event = field(default_factory=asyncio.Event)  # a bucket was sent, or taken by somebody
    sent: list[int] = field(default_factory=list)  # the version of each bucket, in order
    taken: dict[int, int] = field(default_factory=dict)  # server -> buckets

    @property
    def is_complete(self) -> bool:
        return len(self.ranks) == self.world_size - 1


class Network:
    """Connect rank 0 with the servers, like gloo: a group with a dead member breaks for all of them."""

    def __init__(self) -> None:
        self._channels: dict[str, Channel] = {}

    def open(self, group: str, world_size: int) -> None:
        self._channels[group] = Channel(world_size)

    def open_groups(self) -> list[str]:
        return [name for name, channel in self._channels.items() if not channel.broken.is_set()]

    def close(self, group: str) -> None:
        self._channels[group].broken.set()
        self._channels[group].moved.set()

    def die(self, server: int) -> None:
        for name, channel in self._channels.items():
            if server in channel.ranks.values():
                self.close(name)

    async def join(self, group: str, server: int, ranks: range) -> None:
        channel = self._channels[group]
        for rank in ranks:
            assert rank not in channel.ranks, "each rank once"
            assert 1 <= rank < channel.world_size
            channel.ranks[rank] = server
        channel.moved.set()
        await self._until(channel, lambda: channel.is_complete)
        channel.taken[server] = 0

    async def send(self, group: str, version: int, buckets: int) -> None:
        channel = self._channels[group]
        for _ in range(buckets):
            await self._until(channel, lambda: channel.is_complete)
            channel.sent.append(version)
            channel.moved.set()

    async def receive(self, group: str, server: int) -> int:
        """Return the version of the next bucket."""
        channel = self._channels[group]
        number = channel.taken[server]
        channel.taken[server] += 1
        await self._until(channel, lambda: len(channel.sent) > number)
        return channel.sent[number]

    async def _until(self, channel: Channel, is_true: Any) -> None:
        while not channel.broken.is_set():
            if is_true():
                return
            channel.moved.clear()
            await channel.moved.wait()
            await asyncio.sleep(0)
        raise EngineError("the broadcast broke off")


class FakeServer:
    """Answer the commands of a WeightLoader, until it dies at command number `dies`, before or while it is done."""

    def __init__(self, network: Network, number: int, stages: bool, workers: int = 1, dies: int | None = None) -> None:
        self.url = f"http://server-{number}"
        self.weights: dict[str, int] = {}  # name -> version
        self.version = 0
        self._network = network
        self._number = number
        self._stages = stages
        self._workers = workers
        self._dies = dies
        self._commands = 0

    @property
    def is_dead(self) -> bool:
        return self._dies is not None and self._commands > self._dies

    async def join_group(self, name: str, at: Rendezvous, first_rank: int, world_size: int) -> None:
        self._count(name)
        await self._network.join(name, self._number, range(first_rank, first_rank + self._workers))

    async def leave_group(self, name: str) -> None:
        self._count()
        self._network.close(name)

    async def receive(self, group: str, buckets: Sequence[Sequence[TensorSpec]], version: int) -> None:
        self._count()
        held = dict[str, int]() if self._stages else self.weights
        for bucket in buckets:
            for spec in bucket:
                self._count()  # it may die in the middle
                held[spec.name] = await self._network.receive(group, self._number)
        self.weights = self.weights | held
        self.version = version

    def _count(self, joining: str | None = None) -> None:
        """Count a command, and die at the one that is the last."""
        self._commands += 1
        if self.is_dead:
            self._network.die(self._number)
            if joining is not None:
                self._network.close(joining)  # rank 0 gives up a group that is never complete
            raise EngineLost(f"{self.url}: the connection broke")
