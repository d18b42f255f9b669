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
from collections.abc import AsyncIterator, Sequence

from arl.clock import outer_deadline
from arl.errors import DeadlineError, EngineError, EngineLost
from arl.sync.buckets import TensorSpec
from arl.sync.common_swap import CommonSwap, Failures, Work
from arl.sync.engine_groups import EngineGroups, Receiving, failures_of, outcomes_of
from arl.sync.weight_sender import WeightSender
from arl.types import WeightUpdate


class GroupSender:
    """Coordinate the engines of a swap with the trainer's rank 0.

    The router and the loaders of its engines share one:

        async with sender.together(2) as swap:            # by the router; engines load at once
            await sender.join(loader)                     # by each loader, before its pause
            await sender.deliver(loader, update)          # by each loader; returns when it has received everything
            swap.leave()                                  # by the router, for each engine that is done or has failed

    Args:
        trainer: rank 0, as the controller reaches it.
        seconds: deadlines.swap. A version may take twice as long, if it must be sent again.
    """

    def __init__(self, trainer: WeightSender, seconds: float) -> None:
        self._trainer = trainer
        self._seconds = seconds
        self._groups = EngineGroups(trainer)
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

        An engine that lives, and could not join, tries again in `deliver`.

        Raises:
            EngineLost, DeadlineError: the engine is dead.
            TrainerError, ProcessDied: the trainer has failed.
        """
        await self._with_others(engine, self._group_survivors)

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
        await self._groups.forget(engine)

    async def _with_others(self, engine: Receiving, work: Work[Receiving]) -> None:
        if self._swap is not None:
            await self._swap.arrive(engine, work)
            return
        alone: CommonSwap[Receiving] = CommonSwap(1)
        try:
            await alone.arrive(engine, work)
        finally:
            await alone.close()

    async def _send_to_survivors(self, engines: Sequence[Receiving], update: WeightUpdate) -> Failures[Receiving]:
        """Send `update` until every engine that lives has all of it, and return what became of the others.

        Each attempt without a loss is the last but one, because a group may break before its dead engine is known.
        """
        lost: Failures[Receiving] = {}
        left = list(engines)
        is_last = False
        while left:
            failures = await self._attempt(left, update)
            dead = _losses(failures)
            lost |= dead
            left = [engine for engine in failures if engine not in dead]
            if is_last and not dead:
                return lost | failures
            is_last = not dead
        return lost

    async def _attempt(self, engines: Sequence[Receiving], update: WeightUpdate) -> Failures[Receiving]:
        """Send `update` once to `engines`, and return what failed."""
        name, failures = await self._groups.of(engines)
        if name is None:
            return failures
        return await self._groups.work_in(name, self._send(name, engines, update))

    async def _send(self, name: str, engines: Sequence[Receiving], update: WeightUpdate) -> Failures[Receiving]:
        """Have rank 0 send, and every engine receive, and return what failed.

        What an engine says counts only if rank 0 could send everything, because with NCCL an engine answers before its
        GPU has received anything.
        """
        sending = asyncio.ensure_future(self._trainer.send(name, update.version))
        receiving = [self._receive(engine, name, update, sending) for engine in engines]
        unsent, *outcomes = await outcomes_of([sending, *receiving])
        failures = failures_of(engines, outcomes)
        if unsent is None:
            return failures
        not_sent = EngineError(f"version {update.version} was not sent: {unsent}")
        return dict.fromkeys(engines, not_sent) | failures

    async def _receive(self, engine: Receiving, group: str, update: WeightUpdate, sent: asyncio.Future[None]) -> None:
        """Have one engine receive. If it cannot, it leaves the group, so that others stop waiting for it."""
        seconds = 2 * self._seconds  # each of its commands has a deadline of its own
        try:
            async with outer_deadline(seconds, "engine client", f"{engine.url} to receive version {update.version}"):
                await engine.receive(group, update, sent)
        except (EngineLost, DeadlineError):
            raise
        except EngineError:
            await engine.leave_groups()
            raise

    async def _group_survivors(self, engines: Sequence[Receiving]) -> Failures[Receiving]:
        """Have the engines that live join a group, and return those that are dead."""
        lost: Failures[Receiving] = {}
        left = list(engines)
        while left:
            _, failures = await self._groups.of(left)
            dead = _losses(failures)
            if not dead:
                break
            lost |= dead
            left = [engine for engine in left if engine not in dead]
        return lost


def _losses(failures: Failures[Receiving]) -> Failures[Receiving]:
    """Return the failures of engines that are dead; the others live, and could not join or receive."""
    return {engine: error for engine, error in failures.items() if isinstance(error, EngineLost | DeadlineError)}
