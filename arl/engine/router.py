"""Several replicas as one Engine; a replica may be lost, and another take its seat. Torch-free.

generate(request) ─► the replica that has its group, else the live one with the fewest open requests
                          │ lost: input + what was said, the rest of the budget, to one that lives
                          └───────────────────────────────────────────────────────────────────────►
pause, resume, update_weights ─► all live replicas at once
fill(seat, engine) ◄─ whoever restarts engines (arl.launch.keeper): paused if the others are, newest weights, then live
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from arl.clock import now
from arl.engine.base import Engine
from arl.errors import DeadlineError, EngineError, EngineLost, RunError
from arl.types import FinishReason, GenerateRequest, Increment, SwapReport, WeightUpdate

T = TypeVar("T")
DEATH_SECONDS = 3.0  # an engine answers strange things, and breaks connections, before its process has wholly ended


@dataclass(eq=False)
class Replica:
    """One life of an engine in its seat."""

    engine: Engine
    open: int = 0
    cut_short: int = 0  # requests that went on elsewhere when it was lost
    loss: RunError | None = None
    lost: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class _Seat:
    replica: Replica | None = None  # None: empty
    fills: int = 0
    busy_seconds: float = 0.0  # of those that were lost


class Router:
    """An Engine over `replicas`, which whoever made them closes.

    Args:
        replicas: all of one size. None: an empty seat. Whoever fills it does so again each time its replica is lost,
            or ends the run. A router without empty seats raises what a replica that is lost raises.
    """

    def __init__(self, replicas: Sequence[Engine | None]) -> None:
        assert replicas, "a router needs at least one replica"
        self._recovers = None in replicas
        self._seats = [_Seat(None if engine is None else Replica(engine)) for engine in replicas]
        self._homes: dict[str, tuple[Replica, int]] = {}  # affinity ─► (replica, its open requests)
        self._loaded = 0
        self._newest: WeightUpdate | None = None  # what every replica has, or is being given
        self._paused = False
        self._lock = asyncio.Lock()  # one of pause, resume, update and fill at a time
        self._any_live = asyncio.Event()
        if self._live:
            self._any_live.set()

    @property
    def loaded_version(self) -> int:
        self._loaded = max(self._loaded, min((r.engine.loaded_version for r in self._live), default=0))
        return self._loaded

    @property
    def busy_seconds(self) -> float:
        """Mean over the seats; an empty one is idle."""
        live = sum(replica.engine.busy_seconds for replica in self._live)
        return (live + sum(seat.busy_seconds for seat in self._seats)) / len(self._seats)

    @property
    def restarts(self) -> int:
        """Times a seat was filled again."""
        return sum(max(seat.fills - 1, 0) for seat in self._seats)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
        """See Engine.generate. The loss of a replica is invisible but for the time, and perhaps the versions."""
        said: list[int] = []
        while (reason := _finish_reason(request, said)) is None:
            replica = await self._enter(request.affinity)
            increments = replica.engine.generate(_rest(request, said))
            try:
                async for increment in increments:
                    said += increment.token_ids
                    yield increment
                return
            except RunError as error:
                if not await self._is_lost(replica, error):
                    raise
                replica.cut_short += 1
            finally:
                self._leave(request.affinity, replica)
                await increments.aclose()  # type: ignore[attr-defined]
        yield Increment((), (), (), reason)

    async def pause(self) -> None:
        """See Engine.pause."""
        async with self._lock:
            self._paused = True
            await self._each(lambda engine: engine.pause())

    async def resume(self) -> None:
        """See Engine.resume."""
        async with self._lock:
            self._paused = False
            await self._each(lambda engine: engine.resume())

    async def update_weights(self, update: WeightUpdate) -> SwapReport:
        """See Engine.update_weights; the pause reported is the longest. If no replica survives, waits for the next."""
        start = now()

        async def load(engine: Engine) -> SwapReport:
            if engine.loaded_version < update.version:
                return await engine.update_weights(update)
            return SwapReport(update.version, now() - start, now() - start)  # it has just begun with them

        while True:
            async with self._lock:
                self._newest = update
                reports = await self._each(load)
            if reports and self.loaded_version >= update.version:  # some may have loaded it and then been lost
                return SwapReport(update.version, max(r.pause_seconds for r in reports), now() - start)
            await self._any_live.wait()

    # ---- losses

    async def fill(self, seat: int, engine: Engine) -> Replica:
        """Bring `engine` up to date and seat it; from then on it is given requests.

        No version is published meanwhile, so the weights that the others serve are still where they were.

        Raises:
            RunError: what the engine raised; the seat is as empty as before.
        """
        async with self._lock:
            if self._paused:
                await engine.pause()
            if self._newest is not None and engine.loaded_version < self._newest.version:
                await engine.update_weights(self._newest)
            assert engine.loaded_version >= self.loaded_version
            replica = self._seats[seat].replica = Replica(engine)
            self._seats[seat].fills += 1
            self._any_live.set()
            return replica

    def lose(self, replica: Replica, why: RunError) -> None:
        """Give it nothing more. Its open requests go on elsewhere as soon as it ends them. Idempotent."""
        if replica.lost.is_set():
            return
        seat = next(seat for seat in self._seats if seat.replica is replica)
        self._loaded = self.loaded_version  # remembered, even if no replica is left
        seat.busy_seconds += replica.engine.busy_seconds
        seat.replica, replica.loss = None, why
        replica.lost.set()
        if not self._live:
            self._any_live.clear()

    async def _is_lost(self, replica: Replica, error: RunError) -> bool:
        """Whether `error` came of the replica's end; then it is given nothing more."""
        if self._recovers and isinstance(error, EngineLost | DeadlineError):
            self.lose(replica, error)
        elif self._recovers and isinstance(error, EngineError):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DEATH_SECONDS):
                    await replica.lost.wait()
        return replica.lost.is_set()

    @property
    def _live(self) -> list[Replica]:
        return [seat.replica for seat in self._seats if seat.replica is not None]

    async def _each(self, ask: Callable[[Engine], Awaitable[T]]) -> list[T]:
        """What every live replica answers, but for those that are lost in it.

        The first failure of another kind cancels the others and is raised as it is.
        """
        answers: list[T] = []

        async def ask_one(replica: Replica) -> None:
            try:
                answers.append(await ask(replica.engine))
            except RunError as error:
                if not await self._is_lost(replica, error):
                    raise

        try:
            async with asyncio.TaskGroup() as group:
                for replica in self._live:
                    group.create_task(ask_one(replica))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return answers

    # ---- who gets what

    async def _enter(self, affinity: str) -> Replica:
        while not self._live:
            await self._any_live.wait()  # whoever fills seats does so within deadlines, or ends the run
        home, members = self._homes.get(affinity, (None, 0))
        if home is None or home.lost.is_set():
            home, members = min(self._live, key=lambda replica: replica.open), 0
        if affinity:
            self._homes[affinity] = (home, members + 1)
        home.open += 1
        return home

    def _leave(self, affinity: str, replica: Replica) -> None:
        """A group without open requests is forgotten: its next request may go anywhere."""
        replica.open -= 1
        home, members = self._homes.get(affinity, (None, 0))
        if home is replica:
            self._homes[affinity] = (home, members - 1)
            if members == 1:
                del self._homes[affinity]


def _finish_reason(request: GenerateRequest, said: list[int]) -> FinishReason | None:
    """Why `request` is over after `said`; None: it is not."""
    if said and said[-1] in request.sampling.stop_token_ids:
        return "stop"
    return "length" if said and len(said) == request.sampling.max_new_tokens else None


def _rest(request: GenerateRequest, said: list[int]) -> GenerateRequest:
    """What is left of `request` after `said`: it samples what the whole would have."""
    if not said:
        return request
    sampling = replace(request.sampling, max_new_tokens=request.sampling.max_new_tokens - len(said))
    return replace(request, input_ids=(*request.input_ids, *said), sampling=sampling)
