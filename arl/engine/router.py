"""Serve several replicas as one Engine. One may be lost, and another one takes its slot; slots come and go as well.

generate(request) ─► the replica that has its group, else the live one with the most free capacity, as it reports
                          │ lost: input + what was sampled, the rest of the budget, to one that lives
                          └───────────────────────────────────────────────────────────────────────►
pause, resume, update_weights ─► all live replicas at once (update_weights may also take them in turn)
fill(slot, engine) ◄─ arl.engine.supervisor: newest weights, paused if the others are, then live
open_slot, close_slot ◄─ arl.run.engine_pool: an engine joins the run, leaves it or is given up

Torch-free.
"""

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

from arl.clock import now
from arl.engine.base import IDLE, Load, ReplicaEngine, ScoringEngine
from arl.engine.continuation import Continuation
from arl.errors import DeadlineError, EngineError, EngineLost, RunError
from arl.metrics.spans import add_span, span
from arl.sync.group_sender import GroupSender
from arl.types import GenerateRequest, Increment, SamplingParams, ScoreRequest, SwapReport, TokenScores, WeightUpdate

T = TypeVar("T")
REPORT_SECONDS = 1.0  # a replica is asked for its load when a group needs a home, and at most this often
DEATH_SECONDS = 3.0  # an engine may answer with errors, and break connections, before its process has ended


@dataclass(eq=False)
class Replica:
    """Count what one engine is given, from the moment it takes a slot until it is lost."""

    engine: ReplicaEngine
    slot: int
    name: str  # role of its process
    is_external: bool  # somebody else started it: an error of it is its loss, and never the run's end
    counted: float  # of its busy seconds, those that the router has counted
    open: int = 0  # requests
    groups: Counter[str] = field(default_factory=Counter)  # affinity -> open requests
    load: Load = IDLE  # as it reported
    reported_at: float = -math.inf
    requests: int = 0  # given to it since its report, less those that have ended
    tokens: int = 0  # given to it since its report
    cut_short: int = 0  # requests that went on elsewhere when it was lost
    loss: RunError | None = None
    lost: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def free(self) -> float:
        """Return the free share of its capacity; see Load.free."""
        unreported = self.open - self.load.running - self.load.waiting  # a report may lack what was just sent
        requests = max(self.requests, unreported)
        return self.load.free(requests, self.tokens)

    async def ask(self) -> None:
        """Ask for its load; what was given to it before is part of that."""
        self.load = await self.engine.report()
        self.reported_at = now()
        self.requests = 0
        self.tokens = 0


class Router:
    """Serve `replicas`, which their owner closes, as one Engine.

    Args:
        replicas: all of one size. None: an empty slot, which a supervisor fills, and fills again each time its replica
            is lost, as soon as it `may_start`; or the supervisor ends the run. A router without empty slots does not
            recover: it raises what a lost replica raised.
        sender: brings broadcast weights to the replicas that load them together; None: each loads by itself.
    """

    def __init__(self, replicas: Sequence[ReplicaEngine | None], *, sender: GroupSender | None = None) -> None:
        self._sender = sender
        self._slots: dict[int, Replica | None] = {}  # None: empty. A number is never used again
        self._next_slot = 0
        self._were_filled: set[int] = set()
        self.restarts = 0  # how often a slot was filled again
        self._busy_seconds = 0.0  # counted when the slots last changed
        self._oldest_loaded = 0  # loaded_version when a replica was last lost
        self._newest: WeightUpdate | None = None  # what every replica has, or is being given
        self._paused = False
        self._lock = asyncio.Lock()  # one of pause, resume, update and fill at a time
        self._asking = asyncio.Lock()  # one caller asks replicas for their load, on behalf of all that wait to choose
        self._may_use_devices = asyncio.Event()  # cleared by a pause, until something needs the engines again
        self._may_use_devices.set()
        self._starting = {slot for slot, engine in enumerate(replicas) if engine is None}
        self._ending: set[int] = set()  # slots whose replica was lost, while something of it may be left
        self._settled = asyncio.Event()  # a slot has left `_starting` or `_ending`
        self._any_live = asyncio.Event()
        for engine in replicas:
            slot = self.open_slot()
            if engine is not None:
                self._seat(slot, engine, None)
        self._recovers = None in replicas

    @property
    def loaded_version(self) -> int:
        """See Engine.loaded_version. With no replica left it is what it was."""
        versions = [replica.engine.loaded_version for replica in self._live]
        return max(self._oldest_loaded, min(versions, default=0))

    @property
    def busy_seconds(self) -> float:
        """Return the mean over the slots that there were at each moment; an empty one is idle. It never decreases."""
        since = sum(replica.engine.busy_seconds - replica.counted for replica in self._live)
        return self._busy_seconds + since / max(len(self._slots), 1)

    def _count_busy(self) -> None:
        """Count what the replicas were busy so far, because the slots are about to change."""
        self._busy_seconds = self.busy_seconds
        for replica in self._live:
            replica.counted = replica.engine.busy_seconds

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
        """See Engine.generate. The loss of a replica is invisible but for the time, and perhaps the versions."""
        continuation = Continuation(request)
        while (reason := continuation.finish(None)) is None:
            replica = await self._enter(request)
            increments = replica.engine.generate(continuation.rest())
            try:
                with span(replica.name, request.request_id):
                    async for increment in increments:
                        continuation.add(increment.token_ids)
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

    async def score(self, request: ScoreRequest) -> TokenScores:
        """See ScoringEngine.score. The loss of a replica is invisible but for the time: another one is asked."""
        entered = GenerateRequest(request.request_id, request.token_ids, SamplingParams(max_new_tokens=0))
        while True:
            replica = await self._enter(entered)
            try:
                return await cast(ScoringEngine, replica.engine).score(request)
            except RunError as error:
                if not await self._is_lost(replica, error):
                    raise
                replica.cut_short += 1
            finally:
                self._leave("", replica)

    async def pause(self) -> None:
        """See Engine.pause.

        First waits for replicas that are starting, because a start needs the devices, and at the end for lost ones to
        be cleaned up, because they still hold memory: the caller is about to use both.
        """
        await self._settle(self._starting)
        self._may_use_devices.clear()
        async with self._lock:
            self._paused = True
            await self._each(lambda replica: replica.engine.pause())
        await self._settle(self._ending)

    async def resume(self) -> None:
        """See Engine.resume."""
        self._may_use_devices.set()
        async with self._lock:
            self._paused = False
            await self._each(lambda replica: replica.engine.resume())

    async def meet(self) -> None:
        """Have the engines join the group of their first broadcast, before anything is generated."""
        assert self._sender is not None
        async with self._lock:
            await self._sender.meet()

    async def update_weights(self, update: WeightUpdate) -> SwapReport:
        """See Engine.update_weights; the longest pause is reported. If no replica survives, waits for the next."""
        start = now()
        self._may_use_devices.set()  # if no replica has lived through the pause, one must start to load the weights
        while True:
            async with self._lock:
                self._newest = update
                reports = await self._load(update, start)
            if reports and self.loaded_version >= update.version:  # some may have loaded it and then been lost
                slowest = max(reports, key=lambda report: report.pause_seconds)
                recomputed = sum(report.recomputed_tokens for report in reports)
                return SwapReport(update.version, slowest.pause_seconds, now() - start, recomputed, parts=slowest.parts)
            await self._any_live.wait()

    async def _load(self, update: WeightUpdate, start: float) -> list[SwapReport]:
        """Load `update` into all live replicas at once. Those that are lost meanwhile report nothing."""
        replicas = self._live
        together = contextlib.nullcontext() if self._sender is None else self._sender.together(len(replicas))
        async with together as swap:

            async def load(replica: Replica) -> SwapReport:
                try:
                    if replica.engine.loaded_version >= update.version:  # it started with these weights
                        return SwapReport(update.version, now() - start, now() - start)
                    report = await replica.engine.update_weights(update)
                    paused = f"paused for version {update.version}"
                    add_span(replica.name, "interruptions", paused, now() - report.pause_seconds, now())
                    return report
                finally:
                    if swap is not None:
                        swap.leave()

            return await self._each(load, replicas)

    # ---- slots

    def open_slot(self) -> int:
        """Add an empty slot, and return its number: an engine beyond those of the start will be put there."""
        self._recovers = True
        self._count_busy()
        slot = self._next_slot
        self._next_slot += 1
        self._slots[slot] = None
        return slot

    def close_slot(self, slot: int, why: RunError) -> None:
        """Take a slot away, together with what it holds. Its open requests go on elsewhere, and keep their tokens."""
        replica = self._slots[slot]
        if replica is not None:
            self.lose(replica, why)
        self._count_busy()
        del self._slots[slot]
        self._starting.discard(slot)
        self._ending.discard(slot)
        self._settled.set()

    async def may_start(self, slot: int) -> None:
        """Report that nothing is left of the engine of `slot`, and wait until the next one may be started.

        None may be started between a pause and what ends it. From then on, until the slot is filled, a pause waits.
        """
        self._ending.discard(slot)
        self._settled.set()
        while slot not in self._starting and not self._may_use_devices.is_set():
            await self._may_use_devices.wait()
        self._starting.add(slot)

    async def fill(self, slot: int, engine: ReplicaEngine, external: str | None = None) -> Replica:
        """Bring `engine` up to date and put it into `slot`; from then on it is given requests.

        The lock keeps new versions from being loaded meanwhile, so the weights that the others serve still exist.

        Args:
            slot: an empty one.
            engine: of the same size as the others.
            external: its name, if the run has not started it. It is then lost where one of ours would end the run by an
                error. None: it is one of ours.

        Raises:
            EngineError: the engine serves an older version than the others.
            RunError: what the engine raised. In either case the slot is as empty as before.
        """
        async with self._lock:
            if self._newest is not None and engine.loaded_version < self._newest.version:
                await engine.update_weights(self._newest)
            if self._paused:
                await engine.pause()
            if engine.loaded_version < self.loaded_version:
                raise EngineError(f"it serves version {engine.loaded_version}, and the others {self.loaded_version}")
            replica = self._seat(slot, engine, external)
            self._starting.discard(slot)
            self._settled.set()
            return replica

    def _seat(self, slot: int, engine: ReplicaEngine, external: str | None) -> Replica:
        self._count_busy()
        name = external or f"engine-{slot}"
        replica = Replica(engine, slot, name, is_external=external is not None, counted=engine.busy_seconds)
        self._slots[slot] = replica
        self.restarts += slot in self._were_filled
        self._were_filled.add(slot)
        self._any_live.set()
        return replica

    def replica(self, slot: int) -> Replica | None:
        """Return what serves in `slot`; None: nothing, or there is no such slot."""
        return self._slots.get(slot)

    def lose(self, replica: Replica, why: RunError) -> None:
        """Give `replica` no more requests. Its open ones go on elsewhere as soon as it ends them. Idempotent."""
        if replica.lost.is_set():
            return
        self._oldest_loaded = self.loaded_version  # it holds even if no replica is left
        self._count_busy()
        self._slots[replica.slot] = None
        self._ending.add(replica.slot)
        replica.loss = why
        replica.lost.set()
        if not self._live:
            self._any_live.clear()

    async def _is_lost(self, replica: Replica, error: RunError) -> bool:
        """Return whether `error` was caused by the replica's end. If so, the replica is given no more requests.

        A broken connection or a deadline is such an end. A refusal is one only if the process dies within seconds, or
        if somebody else has started it.
        """
        is_refused = replica.is_external and isinstance(error, EngineError)
        is_end = is_refused or isinstance(error, EngineLost | DeadlineError)
        if self._recovers and is_end:
            self.lose(replica, error)
        elif self._recovers and isinstance(error, EngineError):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DEATH_SECONDS):
                    await replica.lost.wait()
        return replica.lost.is_set()

    async def _settle(self, slots: set[int]) -> None:
        """Wait until `slots` is empty. Supervisors empty it within their deadlines, or end the run."""
        while slots:
            self._settled.clear()
            await self._settled.wait()

    @property
    def _live(self) -> list[Replica]:
        """Return the replicas that have a slot."""
        return [replica for replica in self._slots.values() if replica is not None]

    async def _each(self, ask: Callable[[Replica], Awaitable[T]], replicas: Sequence[Replica] | None = None) -> list[T]:
        """Ask `replicas`, or all live ones, at once; return the answers of those that are not lost meanwhile.

        Another failure than a loss cancels the other questions and is raised as it is.
        """
        asked = self._live if replicas is None else replicas
        answers: list[T] = []

        async def ask_one(replica: Replica) -> None:
            try:
                answers.append(await ask(replica))
            except RunError as error:
                if not await self._is_lost(replica, error):
                    raise

        try:
            async with asyncio.TaskGroup() as group:
                for replica in asked:
                    group.create_task(ask_one(replica))
        except BaseExceptionGroup as failures:
            failure = failures.exceptions[0]
            raise failure from failure.__cause__  # which says whether a deadline has passed
        return answers

    # ---- placement of requests

    async def _enter(self, request: GenerateRequest) -> Replica:
        """Choose the replica of `request`, and count the request in."""
        replica = await self._choose(request.affinity)
        if request.affinity:
            replica.groups[request.affinity] += 1
        replica.open += 1
        replica.requests += 1
        replica.tokens += len(request.input_ids)
        return replica

    async def _choose(self, affinity: str) -> Replica:
        """Return the replica that has the group, else the one with the most free capacity; of equals the first.

        Waits for a live replica: supervisors fill slots within their deadlines, or end the run.
        """
        # Fixed, because where answers take longer than REPORT_SECONDS, one of them would always be too old.
        good_from = now() - REPORT_SECONDS
        while True:
            await self._any_live.wait()
            home = next((replica for replica in self._live if affinity in replica.groups), None)
            if home is not None:
                return home
            if len(self._live) == 1 or min(replica.reported_at for replica in self._live) >= good_from:
                return max(self._live, key=lambda replica: replica.free)
            async with self._asking:
                unreported = [replica for replica in self._live if replica.reported_at < good_from]
                await self._each(Replica.ask, unreported)

    def _leave(self, affinity: str, replica: Replica) -> None:
        """Count a request out. A group without open requests is forgotten: its next request may go anywhere."""
        replica.open -= 1
        replica.requests -= 1
        replica.groups[affinity] -= 1
        if replica.groups[affinity] <= 0:
            del replica.groups[affinity]
