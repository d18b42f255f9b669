"""Send every version once to all engines of a swap, in one process group of rank 0 and their workers. Torch-free.

    Router: together(n) ─► each engine's loader: join ─► all are here ─► the group of exactly these engines, kept or new
                                                 deliver ─► all are here ─► rank 0 sends, every engine receives
                                                               │ an engine is lost, or the group breaks
                                                               └─► the whole version again, in a group of the survivors

An engine that loads alone, because it has just started or engines swap in turn, has a group of its own. Which engine
is dead is known by its connection: it does not answer. The others answer that they could not receive.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Protocol

from arl.clock import deadline
from arl.errors import DeadlineError, EngineError, EngineLost
from arl.sync.buckets import TensorSpec
from arl.sync.common_swap import CommonSwap, Failures, Work
from arl.sync.weight_messages import InitGroup
from arl.sync.weight_sender import WeightSender
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


class GroupSender:
    """Coordinate the engines of a swap with the trainer's rank 0.

    The router and the loaders of its engines share one:

        async with sender.together(2) as swap:            # by the router; engines load at once
            await sender.join(loader, update)             # by each loader, before its pause
            await sender.deliver(loader, update)          # by each loader; returns when it has received everything
            swap.leave()                                  # by the router, for each engine that is done or has failed

    Args:
        trainer: rank 0, as the controller reaches it.
        seconds: deadlines.swap. A version may take twice as long, if it must be sent again.
    """

    def __init__(self, trainer: WeightSender, seconds: float) -> None:
        self._trainer = trainer
        self._seconds = seconds
        self._groups: dict[str, frozenset[Receiving]] = {}
        self._swap: CommonSwap[Receiving] | None = None

    @property
    def buckets(self) -> Sequence[Sequence[TensorSpec]]:
        """Return what is sent, in its order."""
        return self._trainer.buckets

    @contextlib.asynccontextmanager
    async def together(self, engines: int) -> AsyncIterator[CommonSwap[Receiving]]:
        """Have the `engines` that load a version in this context load it together.

        The router's lock admits one such swap at a time. An engine that loads outside of it loads alone.
        """
        assert self._swap is None, "one swap at a time"
        self._swap = CommonSwap(engines)
        try:
            yield self._swap
        finally:
            swap = self._swap
            self._swap = None
            await swap.close()

    async def join(self, engine: Receiving) -> None:
        """Wait for the other engines of the swap, and join a group of exactly these, unless there is one.

        An engine that cannot join is given up by `deliver`, which tries again.
        """

        async def open_group(engines: Sequence[Receiving]) -> Failures[Receiving]:
            await self._group_of(engines)
            return {}

        await self._with_others(engine, open_group)

    async def deliver(self, engine: Receiving, update: WeightUpdate) -> None:
        """Wait for the other engines of the swap, and receive `update` together with them.

        Raises:
            EngineLost, DeadlineError: the engine is dead, or out of the trainer's reach.
            EngineError: it refuses what it is sent.
            TrainerError, ProcessDied: the trainer has failed.
        """

        async def send(engines: Sequence[Receiving]) -> Failures[Receiving]:
            return await self._send_to_survivors(engines, update)

        await self._with_others(engine, send)

    async def forget(self, engine: Receiving) -> None:
        """Have rank 0 leave the groups of an engine that is gone."""
        for name in self._groups_with([engine]):
            await self._leave(name)

    async def _with_others(self, engine: Receiving, work: Work[Receiving]) -> None:
        if self._swap is not None:
            await self._swap.arrive(engine, work)
            return
        alone: CommonSwap[Receiving] = CommonSwap(1)
        try:
            await alone.arrive(engine, work)
        finally:
            await alone.close()

    # ---- sending

    async def _send_to_survivors(self, engines: Sequence[Receiving], update: WeightUpdate) -> Failures[Receiving]:
        """Send `update` until every engine that lives has all of it, and return what became of the others.

        Each attempt without a loss is the last but one, because a group may break before its dead engine is known.
        """
        lost: Failures[Receiving] = {}
        left = list(engines)
        is_last = False
        while left:
            failures = await self._attempt(left, update)
            dead = {engine: error for engine, error in failures.items() if _is_loss(error)}
            lost |= dead
            left = [engine for engine in failures if engine not in dead]
            if is_last and not dead:
                return lost | failures
            is_last = not dead
        return lost

    async def _attempt(self, engines: Sequence[Receiving], update: WeightUpdate) -> Failures[Receiving]:
        """Send `update` once to `engines`, and return what failed; the group is left if anything did."""
        name, failures = await self._group_of(engines)
        if name is None:
            return failures
        sending = asyncio.create_task(self._trainer.send(name, update.version))
        receiving = [self._receive(engine, name, update, sending) for engine in engines]
        try:
            failures = await _failures_of(engines, receiving)
            sent = await _outcome(sending)
        finally:
            sending.cancel()
        if failures or sent is not None:
            await self._leave(name)
        return failures

    async def _receive(self, engine: Receiving, group: str, update: WeightUpdate, sent: asyncio.Future[None]) -> None:
        """Have one engine receive. If it cannot, it leaves the group, so that others stop waiting for it."""
        try:
            async with deadline(
                2 * self._seconds, "engine client", f"{engine.url} to receive version {update.version}"
            ):
                await engine.receive(group, update, sent)
        except (EngineLost, DeadlineError):
            raise
        except EngineError:
            await engine.leave_groups()
            raise

    # ---- groups

    async def _group_of(self, engines: Sequence[Receiving]) -> tuple[str | None, Failures[Receiving]]:
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
        failures = await _failures_of(engines, joining)
        if not failures:
            return name, {}
        await self._leave(name)
        broken = EngineError(f"group {name}: it is not complete, because another engine could not join")
        return None, dict.fromkeys(engines, broken) | failures

    def _groups_with(self, engines: Sequence[Receiving]) -> list[str]:
        return [name for name, members in self._groups.items() if members & set(engines)]

    async def _leave(self, name: str) -> None:
        """Have rank 0 leave a group. Engines leave it when they join the next one, or when it breaks."""
        self._groups.pop(name, None)  # an engine that is gone may have been forgotten meanwhile
        await self._trainer.leave(name)


def _is_loss(error: Exception) -> bool:
    """Return whether an error says that the engine is dead, rather than that it could not receive."""
    return isinstance(error, EngineLost | DeadlineError)


async def _failures_of(engines: Sequence[Receiving], asked: Sequence[Awaitable[None]]) -> Failures[Receiving]:
    """Wait for all engines, and return what those raised that did not succeed.

    Raises:
        TrainerError, ProcessDied: the trainer has failed, which is no failure of an engine.
    """
    outcomes = await asyncio.gather(*(_outcome(one) for one in asked))
    return {engine: error for engine, error in zip(engines, outcomes, strict=True) if error is not None}


async def _outcome(work: Awaitable[None]) -> Exception | None:
    """Return the failure of an engine or a group that `work` raises; None: it succeeds."""
    try:
        await work
    except (EngineError, DeadlineError) as error:
        return error
    return None
