"""Keep the open requests that hold a slot as columns of arrays, which one vectorized update a pass changes."""

import asyncio
from collections import deque
from dataclasses import dataclass

import numpy as np

from arl.errors import EngineError
from arl.types import FinishReason, GenerateRequest, Increment


class Stream:
    """Increments of the requests that were submitted together, as (index of the request, increment)."""

    def __init__(self) -> None:
        self._events: deque[tuple[int, Increment]] = deque()
        self._error: EngineError | None = None
        self._arrived = asyncio.Event()

    def put(self, index: int, increment: Increment) -> None:
        self._events.append((index, increment))
        self._arrived.set()

    def fail(self, error: EngineError) -> None:
        self._error = error
        self._arrived.set()

    async def take(self) -> list[tuple[int, Increment]]:
        """Wait for increments, and return all that have arrived.

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
    """A request that waits for a slot, or holds one."""

    request: GenerateRequest
    stream: Stream
    index: int  # in its stream
    sequence: np.ndarray  # (L,) int32: the prompt and, when interrupted, what was generated and streamed so far
    aborted: bool = False

    @property
    def limit(self) -> int:
        """The length, prompt included, at which the budget is spent."""
        return len(self.request.input_ids) + self.request.sampling.max_new_tokens


def _truncates(opened: OpenRequest) -> bool:
    return opened.request.sampling.top_k >= 0 or opened.request.sampling.top_p < 1


class Rows:
    """Rows 0 … count−1 are in use; row i describes slot i of the cache."""

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
        self.length[i] = self.sent[i] = length
        self.limit[i] = opened.limit
        self.seed[i] = sampling.seed & (2**64 - 1)
        self.temperature[i] = sampling.temperature
        self.top_k[i] = sampling.top_k
        self.top_p[i] = sampling.top_p
        extra = len(sampling.stop_token_ids) - self.stops.shape[1]
        if extra > 0:
            self.stops = np.pad(self.stops, ((0, 0), (0, extra)), constant_values=-1)
        self.stops[i] = -1
        self.stops[i, : len(sampling.stop_token_ids)] = sampling.stop_token_ids
        self.truncating += _truncates(opened)
        self.opened.append(opened)
        self.count += 1

    def record(self, tokens: np.ndarray, logprobs: np.ndarray, version: int) -> tuple[np.ndarray, np.ndarray]:
        """Append one token to each row; tokens (n,) int64, logprobs (n,) float32.

        Returns:
            masks (n,) bool of the rows that stopped, and of those whose budget is spent
        """
        n = self.count
        at = (np.arange(n), self.length[:n])
        self.tokens[at] = tokens
        self.logprobs[at] = logprobs
        self.versions[at] = version
        self.length[:n] += 1
        stopped = (self.stops[:n] == tokens[:, None]).any(axis=1)
        return stopped, self.length[:n] >= self.limit[:n]

    def emit(self, row: int, reason: FinishReason | None) -> None:
        """Stream the tokens of `row` that were not streamed yet.

        Raises:
            EngineError: a logprob is not finite: the weights are broken.
        """
        new = slice(int(self.sent[row]), int(self.length[row]))
        opened = self.opened[row]
        logprobs = self.logprobs[row, new]
        if not np.isfinite(logprobs).all():
            raise EngineError(f"request {opened.request.request_id}: the model's logits are not finite numbers")
        tokens = tuple(self.tokens[row, new].tolist())
        versions = tuple(self.versions[row, new].tolist())
        self.sent[row] = self.length[row]
        opened.stream.put(opened.index, Increment(tokens, tuple(logprobs.tolist()), versions, reason))

    def remove(self, gone: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Free the rows of mask `gone` (n,); the last rows fill the holes.

        Returns:
            the rows (k,) int64 that moved, and the rows (k,) int64 where they are now
        """
        left = int((~gone).sum())
        self.truncating -= sum(_truncates(self.opened[i]) for i in np.flatnonzero(gone).tolist())
        target = np.flatnonzero(gone[:left])
        source = left + np.flatnonzero(~gone[left:])
        longest = int(self.length[source].max(initial=0))
        for wide in (self.tokens, self.logprobs, self.versions):
            wide[target, :longest] = wide[source, :longest]
        for column in (
            self.length,
            self.sent,
            self.limit,
            self.seed,
            self.temperature,
            self.top_k,
            self.top_p,
        ):
            column[target] = column[source]
        self.stops[target] = self.stops[source]
        for i, j in zip(source.tolist(), target.tolist(), strict=True):
            self.opened[j] = self.opened[i]
        del self.opened[left:]
        self.count = left
        return source, target
