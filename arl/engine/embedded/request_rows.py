"""Keep the open requests that hold a slot as columns of arrays, which one vectorized update a pass changes."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from arl.errors import EngineError
from arl.types import FinishReason, GenerateRequest, Increment

Event = tuple[int, Increment | EngineError]  # index of the request in its stream; an error ends this request alone


class Stream:
    """Hand on the increments of requests that were submitted together.

    Args:
        names: of the requests; another stream may have the same, once these have ended
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self._events: deque[Event] = deque()
        self._error: EngineError | None = None
        self._arrived = asyncio.Event()

    def put(self, index: int, event: Increment | EngineError) -> None:
        """Add an increment of request `index`, or the error that ends it."""
        self._events.append((index, event))
        self._arrived.set()

    def fail(self, error: EngineError) -> None:
        """End the stream with `error`, which `take` raises once it has returned every increment."""
        self._error = error
        self._arrived.set()

    async def take(self) -> list[Event]:
        """Wait for events, and return all that have arrived.

        It needs no deadline, because an engine that ends fails its streams.

        Raises:
            EngineError: the engine has ended.
        """
        await self._arrived.wait()
        if not self._events and self._error is not None:
            raise EngineError(str(self._error)) from self._error
        taken = list(self._events)
        self._events.clear()
        if self._error is None:
            self._arrived.clear()
        return taken


@dataclass(eq=False)
class OpenRequest:
    """Keep a request that waits for a slot, or holds one."""

    request: GenerateRequest
    stream: Stream
    index: int  # in its stream
    sequence: np.ndarray  # (L,) int32: the prompt and, when interrupted, what was generated and streamed so far
    aborted: bool = False

    @property
    def limit(self) -> int:
        """Return the length, prompt included, at which the budget is spent."""
        return len(self.request.input_ids) + self.request.sampling.max_new_tokens

    @property
    def truncates(self) -> bool:
        """Return whether it asks for top-k or top-p."""
        sampling = self.request.sampling
        return sampling.top_k >= 0 or sampling.top_p < 1


class RowEnds(NamedTuple):
    """Hold masks of the n rows that end with the token just sampled, each (n,) bool."""

    stopped: np.ndarray  # by a stop token
    spent: np.ndarray  # their budget
    failed: np.ndarray  # their logits are not finite: the weights are broken

    @property
    def any(self) -> np.ndarray:
        return np.asarray(self.stopped | self.spent | self.failed)

    def reason(self, row: int) -> FinishReason | None:
        """Return why a row has ended; a stop token wins over a spent budget."""
        if self.stopped[row]:
            return "stop"
        return "length" if self.spent[row] else None


class Rows:
    """Describe the open requests that hold a slot: row i is slot i of the cache, and rows 0 … count−1 are in use."""

    def __init__(self, slots: int, context: int) -> None:
        self.count = 0
        self.truncating = 0  # rows that ask for top-k or top-p
        self.opened: list[OpenRequest] = []
        self.tokens = np.zeros((slots, context), np.int32)
        self.logprobs = np.zeros((slots, context), np.float32)
        self.versions = np.zeros((slots, context), np.int32)
        self.length = np.zeros(slots, np.int64)  # tokens in the sequence, the newest not yet cached
        self.sent = np.zeros(slots, np.int64)  # of them, prompt or already streamed
        self.limit = np.zeros(slots, np.int64)
        self.seed = np.zeros(slots, np.uint64)
        self.temperature = np.ones(slots, np.float32)
        self.top_k = np.full(slots, -1, np.int64)
        self.top_p = np.ones(slots, np.float32)
        self.stops = np.full((slots, 1), -1, np.int32)  # padded with −1, which no token is

    def add(self, opened: OpenRequest) -> None:
        """Give `opened` the next row."""
        i = self.count
        sampling = opened.request.sampling
        length = len(opened.sequence)
        self.tokens[i, :length] = opened.sequence
        self.length[i] = length
        self.sent[i] = length
        self.limit[i] = opened.limit
        self.seed[i] = sampling.seed & (2**64 - 1)
        self.temperature[i] = sampling.temperature
        self.top_k[i] = sampling.top_k
        self.top_p[i] = sampling.top_p
        self._set_stops(i, sampling.stop_token_ids)
        self.truncating += opened.truncates
        self.opened.append(opened)
        self.count += 1

    def _set_stops(self, row: int, token_ids: tuple[int, ...]) -> None:
        """Set the stop tokens of `row`, after widening the column if it has too little room for them."""
        width = len(token_ids)
        extra = width - self.stops.shape[1]
        if extra > 0:
            self.stops = np.pad(self.stops, ((0, 0), (0, extra)), constant_values=-1)
        self.stops[row] = -1
        self.stops[row, :width] = token_ids

    def record(self, tokens: np.ndarray, logprobs: np.ndarray, version: int) -> "RowEnds":
        """Append one token to each row; tokens (n,) int64, logprobs (n,) float32.

        Returns:
            which rows end now, and why
        """
        n = self.count
        rows = np.arange(n)
        ends = self.length[:n]  # a view
        self.tokens[rows, ends] = tokens
        self.logprobs[rows, ends] = logprobs
        self.versions[rows, ends] = version
        ends += 1
        stopped = (self.stops[:n] == tokens[:, None]).any(axis=1)
        spent = ends >= self.limit[:n]
        failed = ~np.isfinite(logprobs)
        return RowEnds(stopped, spent, failed)

    def fail(self, row: int) -> None:
        """End `row` with an error. Its tokens that were not streamed yet are lost."""
        opened = self.opened[row]
        name = opened.request.request_id
        opened.stream.put(opened.index, EngineError(f"request {name}: the model's logits are not finite numbers"))

    def emit(self, row: int, reason: FinishReason | None) -> None:
        """Stream the tokens of `row` that were not streamed yet."""
        start = int(self.sent[row])
        end = int(self.length[row])
        opened = self.opened[row]
        logprobs = self.logprobs[row, start:end]
        increment = Increment(
            token_ids=tuple(self.tokens[row, start:end].tolist()),
            logprobs=tuple(logprobs.tolist()),
            policy_versions=tuple(self.versions[row, start:end].tolist()),
            finish_reason=reason,
        )
        self.sent[row] = end
        opened.stream.put(opened.index, increment)

    def remove(self, gone: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Free the rows of mask `gone` (n,); the last rows fill the holes.

        Returns:
            the rows (k,) int64 that moved, and the rows (k,) int64 where they are now
        """
        for row in np.flatnonzero(gone).tolist():
            self.truncating -= self.opened[row].truncates
        left = int((~gone).sum())
        target = np.flatnonzero(gone[:left])
        source = left + np.flatnonzero(~gone[left:])
        self._copy(source, target)
        del self.opened[left:]
        self.count = left
        return source, target

    def _copy(self, source: np.ndarray, target: np.ndarray) -> None:
        """Copy rows `source` (k,) to rows `target` (k,)."""
        longest = int(self.length[source].max(initial=0))
        for tokenwise in (self.tokens, self.logprobs, self.versions):
            tokenwise[target, :longest] = tokenwise[source, :longest]
        columns = (self.length, self.sent, self.limit, self.seed, self.temperature, self.top_k, self.top_p, self.stops)
        for column in columns:
            column[target] = column[source]
        for i, j in zip(source.tolist(), target.tolist(), strict=True):
            self.opened[j] = self.opened[i]
