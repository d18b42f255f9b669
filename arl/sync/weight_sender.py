"""Define the end that broadcasts weights, as the controller's side reaches it. Torch-free."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from arl.sync.buckets import TensorSpec

GroupBackend = Literal["gloo", "nccl"]


class Rendezvous(NamedTuple):
    """Say where the workers of engines meet the trainer's rank 0."""

    host: str
    port: int
    backend: GroupBackend


class WeightSender(Protocol):
    """Broadcast weights in process groups of rank 0 and the workers of engines. The trainer's client implements it.

    arl.sync.group_sender uses it like this, where `post` sends a request to every engine of the group:

        rendezvous = await trainer.join("arl-7", world_size=3)
        await post(InitGroup(rendezvous.host, rendezvous.port, …))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(trainer.send("arl-7", version=3))
            for bucket in trainer.buckets:
                await post(UpdateFromDistributed(…))
        await trainer.leave("arl-7")
    """

    @property
    def buckets(self) -> Sequence[Sequence[TensorSpec]]:
        """Return what `send` broadcasts, in its order."""

    async def join(self, group: str, world_size: int) -> Rendezvous:
        """Have rank 0 wait for the other ranks of a new group."""

    async def send(self, group: str, version: int) -> None:
        """Have rank 0 broadcast `version`, while every engine of the group is asked to receive it.

        Raises:
            EngineError: the group broke, or was never complete. It is of no more use.
            DeadlineError: rank 0 does not answer.
        """

    async def leave(self, group: str) -> None:
        """Have rank 0 forget the group. It never fails and never waits."""
