"""Keep process groups of rank 0 and the workers of engines: which exist, who is in them, and which broke. Torch-free.

of([A, B]) ─► the group of exactly A and B: kept from the last version, or opened now
work_in    ─► anything fails, or is cancelled ─► the group is left
"""

import asyncio
import secrets
from collections.abc import Awaitable, Sequence
from typing import Protocol

from arl.errors import DeadlineError, EngineError
from arl.sync.common_swap import Failures
from arl.sync.weight_messages import InitGroup
from arl.sync.weight_sender import Rendezvous, WeightSender
from arl.types import WeightUpdate


class Receiving(Protocol):
    """Represent one engine that receives. In a run it is its WeightLoader."""

    @property
    def url(self) -> str:
        """Address of its server, for messages."""

    @property
    def workers(self) -> int:
        """Number of its processes that hold a part of the weights."""

    async def join_group(self, body: InitGroup) -> None:
        """Have its workers join a group. It leaves those that it had joined before."""

    async def receive(self, group: str, update: WeightUpdate, sent: asyncio.Future[None]) -> None:
        """Have its workers receive every bucket of `update`, while rank 0 sends them.

        Args:
            sent: is done when rank 0 has sent everything, or has failed.

        Raises:
            EngineLost, DeadlineError: it is dead.
            EngineError: it lives, and could not receive.
        """

    async def leave_groups(self) -> None:
        """Have its workers leave their groups, so that others stop waiting for them. It never fails."""


class EngineGroups:
    """Open and leave groups.

    Args:
        trainer: rank 0, as the controller reaches it.
    """

    def __init__(self, trainer: WeightSender) -> None:
        self._trainer = trainer
        self._groups: dict[str, frozenset[Receiving]] = {}

    async def forget(self, engine: Receiving) -> None:
        """Have rank 0 leave the groups of an engine that is gone."""
        for name in self._groups_with([engine]):
            await self._leave(name)

    async def of(self, engines: Sequence[Receiving]) -> tuple[str | None, Failures[Receiving]]:
        """Return the name of the group of exactly these engines, which is made unless it exists.

        Returns:
            The name and no failures; or None, and why each engine is in no group.
        """
        for name, members in self._groups.items():
            if members == set(engines):
                return name, {}
        for name in self._groups_with(engines):
            await self._leave(name)
        return await self._open_group(engines)

    async def _open_group(self, engines: Sequence[Receiving]) -> tuple[str | None, Failures[Receiving]]:
        name = f"arl-{secrets.token_hex(8)}"
        world_size = 1 + sum(engine.workers for engine in engines)
        rendezvous = await self._trainer.join(name, world_size)
        self._groups[name] = frozenset(engines)
        failures = await self.work_in(name, _join_all(engines, name, world_size, rendezvous))
        if not failures:
            return name, {}
        broken = EngineError(f"group {name}: it is not complete, because another engine could not join")
        return None, dict.fromkeys(engines, broken) | failures

    async def work_in(self, name: str, work: Awaitable[Failures[Receiving]]) -> Failures[Receiving]:
        """Do `work` in a group, and return what failed. If anything did, the group is left, and not used again.

        So is a group whose work was cancelled: the rest of a version would be received as the beginning of the next.
        """
        is_good = False
        try:
            failures = await work
            is_good = not failures
            return failures
        finally:
            if not is_good:
                await self._leave(name)

    def _groups_with(self, engines: Sequence[Receiving]) -> list[str]:
        return [name for name, members in self._groups.items() if members & set(engines)]

    async def _leave(self, name: str) -> None:
        """Have rank 0 leave a group. Engines leave it when they join the next one, or when it breaks."""
        self._groups.pop(name, None)  # an engine that is gone may have been forgotten meanwhile
        await self._trainer.leave(name)


async def _join_all(
    engines: Sequence[Receiving], name: str, world_size: int, rendezvous: Rendezvous
) -> Failures[Receiving]:
    """Have the workers of all engines join a group, and return what failed."""
    joining = []
    rank = 1
    for engine in engines:
        body = InitGroup(
            master_address=rendezvous.host,
            master_port=rendezvous.port,
            rank_offset=rank,
            world_size=world_size,
            group_name=name,
            backend=rendezvous.backend,
        )
        joining.append(engine.join_group(body))
        rank += engine.workers
    return failures_of(engines, await outcomes_of(joining))


def failures_of(engines: Sequence[Receiving], outcomes: Sequence[Exception | None]) -> Failures[Receiving]:
    """Return what failed, by engine."""
    return {engine: error for engine, error in zip(engines, outcomes, strict=True) if error is not None}


async def outcomes_of(work: Sequence[Awaitable[None]]) -> list[Exception | None]:
    """Wait for all of `work`, and return the failure of an engine or a group that each of it raises; None: it succeeds.

    Raises:
        TrainerError, ProcessDied: the trainer has failed, which is no failure of an engine. It cancels the rest.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            begun = [tasks.create_task(_outcome(one)) for one in work]
    except BaseExceptionGroup as failures:
        failure = failures.exceptions[0]
        raise failure from failure.__cause__  # which says whether a deadline has passed
    return [task.result() for task in begun]


async def _outcome(work: Awaitable[None]) -> Exception | None:
    try:
        await work
    except (EngineError, DeadlineError) as error:
        return error
    return None
