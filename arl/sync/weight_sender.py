"""Define the seam between an engine's client and the trainer's rank 0 for weights that are broadcast. Torch-free."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from arl.sync.buckets import TensorSpec

GroupBackend = Literal["gloo", "nccl"]


class Rendezvous(NamedTuple):
    """Say where the workers of an engine meet the trainer's rank 0."""

    host: str
    port: int
    backend: GroupBackend


class WeightSender(Protocol):
    """Broadcast weights in one process group for each engine. The trainer's client implements it.

    An engine's client uses it like this, where `post` sends a request over HTTP:

        rendezvous = await sender.join("engine-7", world_size=2)
        await post(InitGroup(rendezvous.host, rendezvous.port, …))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(sender.send("engine-7", version=3))
            for bucket in sender.buckets:
                await post(UpdateFromDistributed(…))
        await sender.leave("engine-7")
    """

    @property
    def buckets(self) -> Sequence[Sequence[TensorSpec]]:
        """Return what `send` broadcasts, in its order."""

    async def join(self, group: str, world_size: int) -> Rendezvous:
        """Have rank 0 wait for the other ranks of a new group."""

    async def send(self, group: str, version: int) -> None:
        """Have rank 0 broadcast `version`, while the server is asked to receive it.

        Raises:
            EngineLost: rank 0 could not reach the engine.
        """

    async def leave(self, group: str) -> None:
        """Have rank 0 forget the group. It never fails and never waits."""
