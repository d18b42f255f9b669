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
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from arl.errors import DeadlineError, EngineError, EngineLost
from arl.sync.buckets import TensorSpec
from arl.types import WeightUpdate

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


if TYPE_CHECKING:
    from arl.sync.weight_loader import WeightLoader

Failures = dict["WeightLoader", Exception]  # what failed, by engine; the others have succeeded
Work = Callable[[Sequence["WeightLoader"]], Awaitable[Failures]]


class CommonSwap:
    """Let several engines wait for each other, and do once what concerns all of them.

    Every engine that has not left arrives for the same work, in the same order.

    Args:
        expected: number of engines.
    """

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._waiting: dict[WeightLoader, asyncio.Future[None]] = {}
        self._work: Work | None = None
        self._task: asyncio.Task[None] | None = None

    async def arrive(self, engine: "WeightLoader", work: Work) -> None:
        """Wait until all engines have arrived or left; then `work` is done for those that are here.

        Raises:
            Exception: what `work` reports for this engine, or what it raised.
        """
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[engine] = outcome
        self._work = work
        self._start_if_complete()
        try:
            await outcome
        finally:
            self._waiting.pop(engine, None)  # a caller that was cancelled

    def leave(self) -> None:
        """Note that one more engine takes no further part, because it has failed or is done."""
        self._expected -= 1
        self._start_if_complete()

    async def close(self) -> None:
        """Cancel the work, if it still goes on because its callers were cancelled."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def _start_if_complete(self) -> None:
        if len(self._waiting) < self._expected:
            return
        here = {engine: outcome for engine, outcome in self._waiting.items() if not outcome.cancelled()}
        self._waiting = {}
        if here:
            assert self._work is not None
            self._task = asyncio.create_task(_run(self._work, here))


async def _run(work: Work, here: dict["WeightLoader", asyncio.Future[None]]) -> None:
    """Do the work, and give each engine its outcome."""
    try:
        failures = await work(list(here))
    except Exception as error:
        failures = dict.fromkeys(here, error)
    for engine, outcome in here.items():
        if outcome.done():  # its caller was cancelled
            continue
        if engine in failures:
            outcome.set_exception(failures[engine])
        else:
            outcome.set_result(None)


class GroupSender:
    """Coordinate the engines of a swap with the trainer's rank 0.

    The router and the loaders of its engines share one:

        async with sender.together(2) as swap:            # by the router; engines load at once
            await sender.join(loader)                     # by each loader, before its pause
            await sender.deliver(loader, update)          # by each loader; returns when it has received everything
            swap.leave()                                  # by the router, for each engine that is done or has failed

    Args:
        trainer: rank 0, as the controller reaches it.
    """

    def __init__(self, trainer: WeightSender) -> None:
        self._trainer = trainer
        self._engines: set[WeightLoader] = set()
        self._groups: dict[str, frozenset[WeightLoader]] = {}
        self._swap: CommonSwap | None = None

    @property
    def buckets(self) -> Sequence[Sequence[TensorSpec]]:
        """Return what is sent, in its order."""
        return self._trainer.buckets

    @contextlib.asynccontextmanager
    async def together(self, engines: int) -> AsyncIterator[CommonSwap]:
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

    def add(self, engine: "WeightLoader") -> None:
        """Take an engine into account for `meet`."""
        self._engines.add(engine)

    async def meet(self) -> None:
        """Have all engines join a group, before there is a version to send: SGLang generates nothing while it joins."""
        in_order = sorted(self._engines, key=lambda engine: engine.first_rank)
        await self._group_survivors(in_order)  # the loss of one shows at its next command

    async def join(self, engine: "WeightLoader") -> None:
        """Wait for the other engines of the swap, and join a group of exactly these, unless there is one.

        An engine that lives, and could not join, tries again in `deliver`.

        Raises:
            EngineLost, DeadlineError: the engine is dead.
            TrainerError, ProcessDied: the trainer has failed.
        """
        await self._with_others(engine, self._group_survivors)

    async def deliver(self, engine: "WeightLoader", update: WeightUpdate) -> None:
        """Wait for the other engines of the swap, and receive `update` together with them.

        Raises:
            EngineLost, DeadlineError: the engine is dead, or out of the trainer's reach.
            EngineError: it refuses what it is sent.
            TrainerError, ProcessDied: the trainer has failed.
        """

        async def send(engines: Sequence["WeightLoader"]) -> Failures:
            return await self._send_to_survivors(engines, update)

        await self._with_others(engine, send)

    async def forget(self, engine: "WeightLoader") -> None:
        """Have rank 0 leave the groups of an engine that is gone."""
        self._engines.discard(engine)
        for name in self._groups_with([engine]):
            await self._leave(name)

    async def _with_others(self, engine: "WeightLoader", work: Work) -> None:
        if self._swap is not None:
            await self._swap.arrive(engine, work)
            return
        alone: CommonSwap = CommonSwap(1)
        try:
            await alone.arrive(engine, work)
        finally:
            await alone.close()

    async def _send_to_survivors(self, engines: Sequence["WeightLoader"], update: WeightUpdate) -> Failures:
        """Send `update` until every engine that lives has all of it, and return what became of the others.

        Each attempt without a loss is the last but one, because a group may break before its dead engine is known.
        """
        lost: Failures = {}
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

    async def _attempt(self, engines: Sequence["WeightLoader"], update: WeightUpdate) -> Failures:
        """Send `update` once to `engines`, and return what failed."""
        name, failures = await self._group_of(engines)
        if name is None:
            return failures
        return await self._work_in(name, self._send(name, engines, update))

    async def _send(self, name: str, engines: Sequence["WeightLoader"], update: WeightUpdate) -> Failures:
        """Have rank 0 send, and every engine receive, and return what failed.

        What an engine says counts only if rank 0 could send everything.
        """
        sending = self._trainer.send(name, update.version)
        receiving = [self._receive(engine, name, update) for engine in engines]
        unsent, *outcomes = await _outcomes_of([sending, *receiving])
        failures = _failures_of(engines, outcomes)
        if unsent is None:
            return failures
        not_sent = EngineError(f"version {update.version} was not sent: {unsent}")
        return dict.fromkeys(engines, not_sent) | failures

    async def _receive(self, engine: "WeightLoader", group: str, update: WeightUpdate) -> None:
        """Have one engine receive. If it cannot, it leaves the group, so that others stop waiting for it."""
        try:
            await engine.receive(group, update)
        except (EngineLost, DeadlineError):
            raise
        except EngineError:
            await engine.leave_groups()
            raise

    async def _group_survivors(self, engines: Sequence["WeightLoader"]) -> Failures:
        """Have the engines that live join a group, and return those that are dead."""
        lost: Failures = {}
        left = list(engines)
        while left:
            _, failures = await self._group_of(left)
            dead = _losses(failures)
            if not dead:
                break
            lost |= dead
            left = [engine for engine in left if engine not in dead]
        return lost

    # ---- groups

    async def _group_of(self, engines: Sequence["WeightLoader"]) -> tuple[str | None, Failures]:
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

    async def _open_group(self, engines: Sequence["WeightLoader"]) -> tuple[str | None, Failures]:
        name = f"arl-{secrets.token_hex(8)}"
        world_size = 1 + sum(engine.workers for engine in engines)
        rendezvous = await self._trainer.join(name, world_size)
        self._groups[name] = frozenset(engines)
        failures = await self._work_in(name, _join_all(engines, name, world_size, rendezvous))
        if not failures:
            return name, {}
        broken = EngineError(f"group {name}: it is not complete, because another engine could not join")
        return None, dict.fromkeys(engines, broken) | failures

    async def _work_in(self, name: str, work: Awaitable[Failures]) -> Failures:
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

    def _groups_with(self, engines: Sequence["WeightLoader"]) -> list[str]:
        return [name for name, members in self._groups.items() if members & set(engines)]

    async def _leave(self, name: str) -> None:
        """Have rank 0 leave a group. Engines leave it when they join the next one, or when it breaks."""
        self._groups.pop(name, None)  # an engine that is gone may have been forgotten meanwhile
        await self._trainer.leave(name)


async def _join_all(engines: Sequence["WeightLoader"], name: str, world_size: int, rendezvous: Rendezvous) -> Failures:
    """Have the workers of all engines join a group, and return what failed."""
    joining = []
    rank = 1
    for engine in engines:
        joining.append(engine.join_group(name, rendezvous, rank, world_size))
        rank += engine.workers
    return _failures_of(engines, await _outcomes_of(joining))


def _failures_of(engines: Sequence["WeightLoader"], outcomes: Sequence[Exception | None]) -> Failures:
    """Return what failed, by engine."""
    return {engine: error for engine, error in zip(engines, outcomes, strict=True) if error is not None}


async def _outcomes_of(work: Sequence[Awaitable[None]]) -> list[Exception | None]:
    """Wait for all of `work`, and return the failure of an engine or a group that each of it raises; None: it succeeds.

    Raises:
        TrainerError, ProcessDied: the trainer has failed, which is no failure of an engine.
    """
    outcomes: list[Exception | None] = []
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if outcome is not None and not isinstance(outcome, EngineError | DeadlineError):
            raise outcome
        outcomes.append(outcome)
    return outcomes


def _losses(failures: Failures) -> Failures:
    """Return the failures of engines that are dead; the others live, and could not join or receive."""
    return {engine: error for engine, error in failures.items() if isinstance(error, EngineLost | DeadlineError)}
