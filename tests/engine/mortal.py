"""Engines that can die at any moment, on virtual time, whose tokens are known beforehand."""

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator

from arl.engine.base import Load
from arl.engine.router import Replica, Router
from arl.errors import EngineLost, RunError
from arl.types import Completion, GenerateRequest, Increment, SwapReport, WeightUpdate
from tests.engine.conftest import ask, complete

STOP = 0


def token_at(seed: int, position: int) -> int:
    """Return what a request with `seed` samples at `position` on any replica: one in 17 stops it."""
    return random.Random(f"{seed} {position}").randrange(17)


def uninterrupted(request: GenerateRequest) -> tuple[int, ...]:
    tokens: list[int] = []
    while len(tokens) < request.sampling.max_new_tokens and not set(request.sampling.stop_token_ids) & set(tokens):
        tokens.append(token_at(request.sampling.seed, len(request.input_ids) + len(tokens)))
    return tuple(tokens)


class Mortal:
    """Generate one token a virtual second, in increments of `interval`, until it dies."""

    def __init__(self, router: Router | None = None, version: int = 0, interval: int = 1, swap: float = 3.0) -> None:
        self._router, self._interval, self._swap = router, interval, swap
        self.loaded_version, self.busy_seconds, self.is_paused = version, 0.0, False
        self.given: list[str] = []
        self.load = Load(0, 0, 100, 0, 10_000)
        self._died, self._running = asyncio.Event(), asyncio.Event()
        self._running.set()
        self._death: RunError = EngineLost("the connection broke")

    def die(self, of: RunError | None = None) -> None:
        self._death = of or self._death
        self._died.set()

    async def _takes(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._died.wait()
        if self._died.is_set():
            raise self._death

    async def _unpaused(self) -> None:
        while not self._running.is_set():
            tasks = [asyncio.create_task(e.wait()) for e in (self._running, self._died)]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            if self._died.is_set():
                raise self._death

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
        await self._takes(0)
        self.given.append(request.request_id)
        assert self._router is None or self.loaded_version >= self._router.loaded_version
        start, said, versions = len(request.input_ids), list[int](), list[int]()
        for position in itertools.count(start):
            await self._takes(1.0)
            await self._unpaused()
            said.append(token_at(request.sampling.seed, position))
            versions.append(self.loaded_version)
            spent = position + 1 - start == request.sampling.max_new_tokens
            reason = "stop" if said[-1] in request.sampling.stop_token_ids else "length" if spent else None
            if reason or len(said) == self._interval:
                yield Increment(tuple(said), (-1.0,) * len(said), tuple(versions), reason)  # type: ignore[arg-type]
                said, versions = [], []
            if reason:
                return

    async def report(self) -> Load:
        await self._takes(0.05)
        return self.load

    async def pause(self) -> None:
        await self._takes(0.1)
        self.is_paused = True
        self._running.clear()

    async def resume(self) -> None:
        await self._takes(0.1)
        self.is_paused = False
        self._running.set()

    async def update_weights(self, update: WeightUpdate) -> SwapReport:
        self._running.clear()
        await self._takes(self._swap)
        assert update.version >= self.loaded_version
        self.loaded_version = update.version
        if not self.is_paused:
            self._running.set()
        return SwapReport(update.version, self._swap, self._swap)


async def filled(*engines: Mortal) -> tuple[Router, list[Replica]]:
    router = Router([None] * len(engines))
    return router, [await router.fill(i, engine) for i, engine in enumerate(engines)]


async def opened(router: Router, *requests: GenerateRequest) -> list[asyncio.Task[Completion]]:
    tasks = [asyncio.create_task(complete(router, request)) for request in requests]
    await asyncio.sleep(0.5)
    return tasks


def member(group: str, i: int, tokens: int = 20) -> GenerateRequest:
    return GenerateRequest(f"{group}{i}", (1,), ask("", tokens=tokens).sampling, group)
