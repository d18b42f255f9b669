"""Keep the open requests that hold a slot as columns of arrays, which one vectorized update a pass changes."""

import asyncio
from dataclasses import dataclass

import numpy as np

from arl.errors import EngineError
from arl.types import FinishReason, GenerateRequest, Increment

Event = tuple[int, Increment | EngineError]  # index of the request in its stream; an error ends this request alone


class Stream:
    """Hand on the increments of requests that were submitted together."""

    def __init__(self) -> None:
        self.requests: list[OpenRequest] = []
        self._events: list[Event] = []
        self._arrived = asyncio.Event()

    def put(self, index: int, event: Increment | EngineError) -> None:
        """Add an increment of request `index`, or the error that ends it."""
        self._events.append((index, event))
        self._arrived.set()

    async def take(self) -> list[Event]:
        """Wait for events, and return all that have arrived.

        It needs no deadline, because an engine that ends fails its requests.
        """
        await self._arrived.wait()
        self._arrived.clear()
        taken = self._events
        self._events = []
        return taken


@dataclass(eq=False)
class OpenRequest:
    """Keep a request that waits for a slot, or holds one."""

    request: GenerateRequest
    stream: Stream
    index: int  # in its stream
    sequence: np.ndarray  # (L,) int32: the prompt and, when interrupted, what was generated and streamed so far
    aborted: bool = False


class Rows:
    """Describe the open requests that hold a slot: row i is slot i of the cache, and rows 0 … count−1 are in use."""

    def __init__(self, slots: int, context: int) -> None:
        self.count = 0
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
        self.limit[i] = len(opened.request.input_ids) + sampling.max_new_tokens
        self.seed[i] = sampling.seed & (2**64 - 1)
        self.temperature[i] = sampling.temperature
        self.top_k[i] = sampling.top_k
        self.top_p[i] = sampling.top_p
        width = len(sampling.stop_token_ids)
        extra = width - self.stops.shape[1]
        if extra > 0:  # the column is too narrow for these stop tokens
            self.stops = np.pad(self.stops, ((0, 0), (0, extra)), constant_values=-1)
        self.stops[i] = -1
        self.stops[i, :width] = sampling.stop_token_ids
        self.opened.append(opened)
        self.count += 1

    def record(self, tokens: np.ndarray, logprobs: np.ndarray, version: int, interval: int) -> np.ndarray:
        """Append one token to each row, and stream what is due: every `interval` tokens, and at the end.

        Args:
            tokens, logprobs: (n,) int64 and (n,) float32

        Returns:
            mask (n,) of the rows that have ended
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
        failed = ~np.isfinite(logprobs)  # the weights are broken
        gone = stopped | spent | failed
        due = gone | (ends - self.sent[:n] >= interval)
        for row in np.flatnonzero(due).tolist():
            if failed[row]:
                opened = self.opened[row]
                name = opened.request.request_id
                error = EngineError(f"request {name}: the model's logits are not finite numbers")
                opened.stream.put(opened.index, error)
            elif stopped[row]:
                self.emit(row, "stop")
            else:
                self.emit(row, "length" if spent[row] else None)
        return np.asarray(gone)

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
        left = int((~gone).sum())
        target = np.flatnonzero(gone[:left])
        source = left + np.flatnonzero(~gone[left:])
        longest = int(self.length[source].max(initial=0))
        for tokenwise in (self.tokens, self.logprobs, self.versions):
            tokenwise[target, :longest] = tokenwise[source, :longest]
        columns = (self.length, self.sent, self.limit, self.seed, self.temperature, self.top_k, self.top_p, self.stops)
        for column in columns:
            column[target] = column[source]
        for i, j in zip(source.tolist(), target.tolist(), strict=True):
            self.opened[j] = self.opened[i]
        del self.opened[left:]
        self.count = left
        return source, target
