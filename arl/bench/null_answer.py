"""Stream the events of requests that a model of lengths answers, instead of a language model. Torch-free.

POST /generate ─► NullAnswer ─► every `interval` tokens of a request: one event ─► the last one, or an abort
"""

import asyncio
from typing import Any, Protocol

import msgspec
from aiohttp import web
from msgspec import Struct

from arl.engine.http import wire

NUM_SAMPLED = 4096  # different tokens, which every request samples in turn


class LengthModel(Struct, frozen=True):
    """Say how fast and how long requests are."""

    rate: float  # tokens a second of one request
    interval: int  # tokens of an increment
    longest: int  # the budget of a whole request; lengths are uniform from 1 to it

    def length(self, sampling: wire.Sampling) -> int:
        """Return the tokens that are left of a request, from its seed and its budget.

        The rest of a request that was cut short ends where the whole one would have.

        >>> model = LengthModel(rate=50, interval=16, longest=1000)
        >>> model.length(wire.Sampling(max_new_tokens=1000, sampling_seed=2599))
        600
        >>> model.length(wire.Sampling(max_new_tokens=900, sampling_seed=2599))
        500
        """
        whole = 1 + (sampling.sampling_seed or 0) % self.longest
        sampled = self.longest - sampling.max_new_tokens
        return max(whole - sampled, 1)


class Totals(Struct):
    """Count what the replicas of one process have sent."""

    events: int = 0
    tokens: int = 0
    ended: int = 0  # requests, those that were aborted included
    open: int = 0  # requests
    cpu_seconds: float = 0.0  # of the process

    def end(self, num_requests: int) -> None:
        """Count requests that have ended."""
        self.open -= num_requests
        self.ended += num_requests


class NullRequest(Struct):
    """Keep one open request."""

    index: int  # in its batch
    rid: str
    num_prompt: int
    length: int
    start: float  # on its replica's clock
    num_sent: int = 0
    is_aborted: bool = False


class Answering(Protocol):
    """Represent what an answer needs of the engine that gives it."""

    model: LengthModel
    totals: Totals
    sampled: list[tuple[float, int, Any]]
    """(logprob, id, None) of NUM_SAMPLED tokens and the first ones again, so that any slice is whole."""
    version: int
    is_paused: bool

    def now(self) -> float:
        """Return the seconds on the replica's clock, which stands still while it is paused."""


class NullAnswer:
    """Stream the events of one batch of requests, which start together."""

    def __init__(self, replica: Answering, body: wire.Generate) -> None:
        self._replica = replica
        self._wake = asyncio.Event()
        self.requests = self._requests(body)

    def _requests(self, body: wire.Generate) -> list[NullRequest]:
        assert isinstance(body.rid, list)
        assert isinstance(body.sampling_params, list)
        start = self._replica.now()
        requests = []
        for index, (rid, ids, sampling) in enumerate(
            zip(body.rid, body.input_ids, body.sampling_params, strict=True),
        ):
            assert isinstance(ids, list)
            length = self._replica.model.length(sampling)
            requests.append(NullRequest(index, rid, len(ids), length, start))
        return requests

    def abort(self, prefix: str) -> None:
        """End the requests whose id begins with `prefix`."""
        for request in self.requests:
            if request.rid.startswith(prefix):
                request.is_aborted = True
        self.wake()

    def wake(self) -> None:
        """Look again which requests are due."""
        self._wake.set()

    async def stream(self, response: web.StreamResponse) -> None:
        """Send the events of all requests, each as soon as it is due, until they have ended.

        Waits for the next one's time. Unblocked by it, by an abort and by the end of a pause.
        """
        while self.requests:
            for request in await self._due():
                event = self._event(request)
                if request.is_aborted or request.num_sent == request.length:
                    self.requests.remove(request)
                    self._replica.totals.end(1)
                await response.write(event)

    async def _due(self) -> list[NullRequest]:
        """Wait until at least one request has its next increment, or was aborted."""
        while True:
            now = self._replica.now()
            due = [request for request in self.requests if request.is_aborted or self._time_of(request) <= now]
            if due and not (self._replica.is_paused and not any(request.is_aborted for request in due)):
                return due
            self._wake.clear()
            first = min(self._time_of(request) for request in self.requests)
            seconds = None if self._replica.is_paused else first - now
            try:
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _time_of(self, request: NullRequest) -> float:
        """Return when the request's next increment is complete."""
        model = self._replica.model
        tokens = min(request.num_sent + model.interval, request.length)
        return request.start + tokens / model.rate

    def _event(self, request: NullRequest) -> bytes:
        new = 0 if request.is_aborted else min(self._replica.model.interval, request.length - request.num_sent)
        first = request.num_sent % NUM_SAMPLED
        triples = self._replica.sampled[first : first + new]
        request.num_sent += new
        self._replica.totals.events += 1
        self._replica.totals.tokens += new
        meta = wire.MetaInfo(
            id=request.rid,
            finish_reason=_finish(request),
            output_token_logprobs=triples,
            prompt_tokens=request.num_prompt,
            completion_tokens=request.num_sent,
            weight_version=str(self._replica.version),
        )
        if meta.finish_reason is not None and request.num_sent:
            meta.weight_versions = [wire.Span(meta.weight_version, 0, request.num_sent)]
        ids = [token for _, token, _ in triples]
        return b"data: " + msgspec.json.encode(wire.Chunk(ids, meta, request.index)) + b"\n\n"


def _finish(request: NullRequest) -> wire.Finish | None:
    if request.is_aborted:
        return wire.Finish("abort", message="aborted")
    if request.num_sent == request.length:
        return wire.Finish("stop", matched=0)
    return None
