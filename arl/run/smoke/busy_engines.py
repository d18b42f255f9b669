"""Keep every slot of the engines busy with random prompts, and keep what they answer.

slots callers ─► the next request, in groups of one prompt ─► tokens with logprobs and versions
             ◄── until the time is over and enough groups are complete; what is open then is aborted
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
from msgspec import Struct

from arl.clock import now
from arl.engine.base import Engine
from arl.types import GenerateRequest, SamplingParams

GROUP = 4  # requests of one prompt
PROMPT = 24  # tokens
RESPONSE = 48  # tokens
ENOUGH_GROUPS = 16


class Demand(Struct, frozen=True, kw_only=True):
    """Say what is generated."""

    name: str  # begins the ids of requests, which must not repeat
    slots: int  # requests that are open at once
    vocab_size: int  # prompts are of ids below it
    temperature: float


class SampledAnswer(Struct, frozen=True):
    """Hold one request with what was sampled for it."""

    group: int
    prompt: tuple[int, ...]
    sampled: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]


class Generated(Struct, frozen=True):
    """Hold complete groups of answers, and how fast tokens came."""

    answers: list[SampledAnswer]
    tokens: int  # of all requests, also of those that were aborted
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Return the rate over the whole time."""
        return self.tokens / self.seconds


class _Collector:
    """Count tokens as they come, and collect the answers that are complete."""

    def __init__(self, engine: Engine, demand: Demand) -> None:
        self._engine = engine
        self._demand = demand
        self._numbers = itertools.count()
        self._groups: dict[int, list[SampledAnswer]] = {}
        self.tokens = 0
        self.got_token = asyncio.Event()
        self.is_enough = asyncio.Event()

    @property
    def complete(self) -> list[SampledAnswer]:
        """Return the answers of complete groups, in the order of groups."""
        answers: list[SampledAnswer] = []
        for _, group in sorted(self._groups.items()):
            if len(group) == GROUP:
                answers += group
        return answers

    async def call(self) -> None:
        """Ask for one request after the other, until this is cancelled."""
        for number in self._numbers:
            await self._ask(number)
            if len(self.complete) >= ENOUGH_GROUPS * GROUP:
                self.is_enough.set()

    async def _ask(self, number: int) -> None:
        group = number // GROUP
        drawn = np.random.default_rng(group).integers(0, self._demand.vocab_size, PROMPT)
        prompt = tuple(drawn.tolist())
        request = GenerateRequest(
            request_id=f"{self._demand.name}-{number}",
            input_ids=prompt,
            sampling=SamplingParams(RESPONSE, temperature=self._demand.temperature, seed=number),
            affinity=f"{self._demand.name}-{group}",
        )
        sampled: tuple[int, ...] = ()
        logprobs: tuple[float, ...] = ()
        versions: tuple[int, ...] = ()
        async for increment in self._engine.generate(request):
            sampled += increment.token_ids
            logprobs += increment.logprobs
            versions += increment.policy_versions
            self.tokens += len(increment.token_ids)
            self.got_token.set()
        answer = SampledAnswer(group, prompt, sampled, logprobs, versions)
        self._groups.setdefault(group, []).append(answer)


@asynccontextmanager
async def kept_busy(engine: Engine, demand: Demand) -> AsyncIterator[_Collector]:
    """Keep requests open for the length of the block, which begins when the first token has come."""
    collector = _Collector(engine, demand)
    async with asyncio.TaskGroup() as tasks:
        callers = [tasks.create_task(collector.call()) for _ in range(demand.slots)]
        try:
            await collector.got_token.wait()
            yield collector
        finally:
            for caller in callers:
                caller.cancel()


async def generate(engine: Engine, demand: Demand, seconds: float) -> Generated:
    """Generate for `seconds` at least, and until enough groups are complete."""
    async with kept_busy(engine, demand) as collector:
        before = collector.tokens
        start = now()
        await asyncio.sleep(seconds)
        await collector.is_enough.wait()
        return Generated(collector.complete, collector.tokens - before, now() - start)
