"""Define the engine seam: what the controller needs of everything that generates.

pause() ─► update_weights(update) ─► resume()      a swap while requests are open: they stay open, keep their
                                                   tokens, and continue under the new weights
"""

from collections.abc import AsyncIterator
from typing import Protocol

from msgspec import Struct

from arl.errors import EngineError
from arl.types import GenerateRequest, Increment, SamplingParams, ScoreRequest, SwapReport, TokenScores, WeightUpdate


class Load(Struct, frozen=True):
    """Say how much work one replica has, and how much of it fits at once."""

    running: int  # requests
    waiting: int
    slots: int  # requests it decodes together
    tokens: int  # in its cache, and of the requests that wait for it
    capacity: int  # tokens that its cache holds

    def free(self, requests: int, tokens: int) -> float:
        """Return the free share of its slots or of its cache, whichever is less, with so much more work.

        Below 0 some of the work must wait.

        >>> Load(running=6, waiting=0, slots=8, tokens=100, capacity=1000).free(requests=1, tokens=400)
        0.125
        """
        used_slots = (self.running + self.waiting + requests) / self.slots
        used_cache = (self.tokens + tokens) / self.capacity
        return 1.0 - max(used_slots, used_cache)


IDLE = Load(running=0, waiting=0, slots=1, tokens=0, capacity=1)  # of a replica that has not reported yet


class Engine(Protocol):
    """Generate with weights that change meanwhile.

    request = GenerateRequest("episode-7.0", (1, 5, 9), SamplingParams(max_new_tokens=64, stop_token_ids=(2,)))
    async for increment in engine.generate(request):
        tokens += increment.token_ids                      # each with its logprob and its policy version
    await engine.update_weights(WeightUpdate(8, path))     # open requests go on under version 8
    """

    @property
    def loaded_version(self) -> int:
        """Return the oldest version loaded on any live replica; it never decreases."""

    @property
    def busy_seconds(self) -> float:
        """Return the seconds since the start with at least one request open and no pause."""

    def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
        """Yield increments as they are produced; the last one has a finish reason, "stop" or "length".

        Closing the iterator aborts the request. Pauses and swaps are invisible but for the versions.

        Raises:
            EngineError: an id outside the vocabulary, a request longer than the context.
            EngineLost: the engine is gone; what it has yielded stands.
        """

    async def pause(self) -> None:
        """Stop generating; open requests stay open. Idempotent."""

    async def resume(self) -> None:
        """Generate again. Idempotent."""

    async def update_weights(self, update: WeightUpdate) -> SwapReport:
        """Load `update` on every replica, pausing around it if the engine is not paused already."""


class ScoringEngine(Protocol):
    """Score tokens that another model has sampled: what a teacher's engine can do."""

    async def score(self, request: ScoreRequest) -> TokenScores:
        """Return the log-probabilities of its tokens.

        Raises:
            EngineError: an id outside the vocabulary, or more tokens than the context.
            EngineLost: the engine is gone.
        """


class ReplicaEngine(Engine, Protocol):
    """Generate as one of several engines, which report their load to the router."""

    async def report(self) -> Load:
        """Return its load now, or a few passes ago."""


def refuse_unscorable(request: ScoreRequest, vocab_size: int, context: int) -> None:
    """Check the tokens to score; see refuse_impossible."""
    nothing = SamplingParams(max_new_tokens=0)
    refuse_impossible(GenerateRequest(request.request_id, request.token_ids, nothing), vocab_size, context)


def refuse_impossible(request: GenerateRequest, vocab_size: int, context: int) -> None:
    """Check the tokens of a request against a model of `vocab_size` tokens and a context of `context` tokens.

    Raises:
        EngineError: naming the request, the value, the rule and the remedy.
    """
    ids = request.input_ids
    budget = request.sampling.max_new_tokens
    name = f"request {request.request_id}"
    if not ids:
        raise EngineError(f"{name}: input_ids is empty: give at least one token")
    total = len(ids) + budget
    if total > context:
        raise EngineError(
            f"{name}: {len(ids)} input tokens + max_new_tokens {budget} = {total} exceed "
            f"the model's context of {context}: shorten the prompt or the budget"
        )
    if min(ids) < 0 or max(ids) >= vocab_size:  # once there are few enough to look at each
        wrong = next(i for i in ids if not 0 <= i < vocab_size)
        raise EngineError(f"{name}: id {wrong} is outside the vocabulary: ids run from 0 to {vocab_size - 1}")
