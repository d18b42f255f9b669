"""A backend of a user's own, as the recipe names it: `engine: {kind: tests.extending.my_backend:PatternBackend}`.

Its engine runs in this process, and answers every request with a fixed pattern: consecutive ids, of which the first one
depends on the request's seed. The rest is inherited from arl's own backend.
"""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from arl.config.capabilities import Capabilities
from arl.config.recipe import Recipe
from arl.data.model_limits import model_limits
from arl.engine.backend import ServerSpec
from arl.engine.base import Load, ReplicaEngine, refuse_impossible
from arl.engine.embedded.embedded_backend import EmbeddedBackend
from arl.launch.base import Command
from arl.types import GenerateRequest, Increment, StartingVersions, SwapReport, WeightUpdate

TOKENS = 4  # of one increment


class PatternEngine:
    """Generates without a model; each increment costs `seconds` of the clock."""

    def __init__(self, vocab_size: int, context: int, version: int, seconds: float) -> None:
        self.loaded_version = version
        self.busy_seconds = 0.0
        self._vocab_size = vocab_size
        self._context = context
        self._seconds = seconds
        self._running = asyncio.Event()
        self._running.set()

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
        refuse_impossible(request, self._vocab_size, self._context)
        budget = request.sampling.max_new_tokens
        for start in range(0, budget, TOKENS):
            await self._running.wait()
            await asyncio.sleep(self._seconds)
            self.busy_seconds += self._seconds
            ids = self._pattern(request, range(start, min(start + TOKENS, budget)))
            logprobs = (-math.log(self._vocab_size),) * len(ids)
            versions = (self.loaded_version,) * len(ids)
            is_last = start + TOKENS >= budget
            yield Increment(ids, logprobs, versions, "length" if is_last else None)

    def _pattern(self, request: GenerateRequest, places: range) -> tuple[int, ...]:
        first = len(request.input_ids) + request.sampling.seed
        return tuple((first + place) % self._vocab_size for place in places)

    async def pause(self) -> None:
        self._running.clear()

    async def resume(self) -> None:
        self._running.set()

    async def update_weights(self, update: WeightUpdate) -> SwapReport:
        self.loaded_version = update.version
        return SwapReport(update.version, pause_seconds=0.0, seconds=0.0)

    async def report(self) -> Load:
        return Load(running=0, waiting=0, slots=64, tokens=0, capacity=1)


class PatternBackend(EmbeddedBackend):
    """Generates a pattern in this process."""

    capabilities = Capabilities(transports=("file", "memory"), deterministic_seeds=True, in_process=True)

    @asynccontextmanager
    async def open_in_process(self, recipe: Recipe, versions: StartingVersions) -> AsyncIterator[ReplicaEngine]:
        limits = model_limits(versions.served)
        yield PatternEngine(limits.vocab_size, limits.context, versions.oldest, recipe.virtual.engine_pass)


class WrongCommand(EmbeddedBackend):
    """Wants an argument more than arl gives."""

    def command(self, server: ServerSpec, port: int) -> Command:  # type: ignore[override]
        command = super().command(server)
        return Command((*command.argv, "--port", str(port)), command.environment)
