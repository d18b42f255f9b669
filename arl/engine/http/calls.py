"""Check the increments of one generate() call over HTTP, and hand them to its caller. Torch-free."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from arl.engine.continuation import Continuation
from arl.engine.http import wire
from arl.errors import EngineError, RunError, short_message
from arl.sync.weight_messages import version_number
from arl.types import FinishReason, Increment

_chunks = msgspec.json.Decoder(wire.Chunk)


def decode(data: bytes) -> wire.Chunk:
    """Read one server-sent event.

    Raises:
        EngineError: it is not an increment; quotes it.
    """
    try:
        return _chunks.decode(data)
    except (ValueError, RecursionError) as error:
        raise EngineError(f"{error}: {data[:500]!r}") from error


@dataclass(eq=False)
class Call:
    """Keep a request that is open at one server. It may be sent several times, because a pause cuts it short."""

    continuation: Continuation
    serial: int  # in order of arrival
    rid: str = ""  # its id on the wire; new each time it is sent, because a server may still hold the last one
    received: int = 0  # tokens since it was last sent
    unsettled_ids: list[int] = field(default_factory=list)  # sampled by a version that is not known yet
    unsettled_logprobs: list[float] = field(default_factory=list)
    events: deque[Increment | RunError] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    sent: asyncio.Event = field(default_factory=asyncio.Event)  # the server knows of it, or never will
    closed: bool = False  # by the caller

    @property
    def request_id(self) -> str:
        return self.continuation.request.request_id

    @property
    def num_computed(self) -> int:
        """Return how many tokens the server has computed for it, prompt included; 0 if it has not said any."""
        if not self.received:
            return 0
        return len(self.continuation.request.input_ids) + self.continuation.num_sampled

    def put(self, event: Increment | RunError) -> None:
        """Hand an increment, or the error that ends the call, to the caller."""
        self.events.append(event)
        self.arrived.set()

    def fail(self, url: str, reason: object, kind: type[EngineError]) -> None:
        """End the call with an error of `kind` that names the server and the request."""
        self.put(kind(f"{url}: request {self.request_id}: {short_message(str(reason))}"))

    def take(self, chunk: wire.Chunk, paused: bool, swapped: bool) -> bool:
        """Take one increment; return whether a pause cut the call short, so that the rest is to be asked for.

        Args:
            chunk: of this call
            paused: there was a pause since the call was sent
            swapped: weights were loaded since, under the open call. Until the server reports the spans, which it does
                with the last increment, the old weights may have sampled any of its next tokens

        Raises:
            EngineError: the increment is inconsistent, or an abort that no pause since the call was sent explains.
        """
        meta = chunk.meta_info
        finish = meta.finish_reason
        ids, logprobs = self._new_tokens(chunk)
        self.received += len(ids)
        self.unsettled_ids += ids
        self.unsettled_logprobs += [min(logprob, 0.0) for logprob in logprobs]  # SGLang rounds probabilities up to 1
        self.continuation.add(ids)
        if finish is None:
            if meta.weight_versions or not swapped:
                self._settle(meta, swapped, None)
            return False
        reason = self._finish(finish.type)
        if reason != "abort":
            self._settle(meta, swapped, reason)
            return False
        self._settle(meta, swapped, None)
        if self.closed:
            return False
        if not paused:
            raise EngineError(f"the server aborted it without being asked to: {finish.message}")
        self.sent.clear()
        return True

    def _new_tokens(self, chunk: wire.Chunk) -> tuple[list[int], Sequence[float]]:
        """Return the ids of `chunk` and their logprobs.

        An abort of a call that waits in the server repeats the last token that was sent, which is left out.

        Raises:
            EngineError: the increment does not follow on the last one, or ids and logprobs do not belong together.
        """
        meta = chunk.meta_info
        ids = chunk.output_ids
        triples = meta.output_token_logprobs
        count = meta.completion_tokens - self.received
        finish = meta.finish_reason
        is_aborted = finish is not None and finish.type == "abort"
        if is_aborted and 0 <= count <= min(len(ids), len(triples)):
            ids = ids[len(ids) - count :]
            triples = triples[len(triples) - count :]
        if count != len(ids):
            raise EngineError("increments do not add up: SGLang needs --incremental-streaming-output")
        if len(triples) != len(ids):
            raise EngineError(f"{len(ids)} ids came with {len(triples)} logprobs")
        return ids, [logprob for logprob, _, _ in triples]

    def _versions(self, meta: wire.MetaInfo, count: int) -> tuple[int, ...]:
        """Return which version sampled each of the last `count` tokens.

        Raises:
            EngineError: the server names none.
        """
        try:
            if meta.weight_versions is not None:
                return wire.versions_of(meta.weight_versions, count)
            return (version_number(meta.weight_version),) * count if count else ()
        except ValueError as error:
            raise EngineError(str(error)) from None

    def _settle(self, meta: wire.MetaInfo, swapped: bool, reason: FinishReason | None) -> None:
        """Hand on the unsettled tokens, with their versions.

        Args:
            meta: of the increment that settles them
            swapped: weights were loaded since the call was sent
            reason: why the whole request has ended; None: it goes on

        Raises:
            EngineError: the server does not report which version sampled a token.
        """
        ids = self.unsettled_ids
        logprobs = self.unsettled_logprobs
        if not ids and reason is None:
            return
        self.unsettled_ids = []
        self.unsettled_logprobs = []
        if meta.weight_versions is None and swapped and ids:
            raise EngineError(
                "it does not report which version sampled a token: engine.kv_policy keep needs SGLang 0.5.18"
            )
        versions = self._versions(meta, len(ids))
        self.put(Increment(tuple(ids), tuple(logprobs), versions, reason))

    def _finish(self, reason: FinishReason) -> FinishReason:
        """Return why the request ended, when the server gives `reason`; "abort": it has not ended.

        Raises:
            EngineError: it ended short of its budget, because the server has less room than its model.
        """
        finish = self.continuation.finish(reason)
        assert finish is not None, "a given reason is kept, or replaced by another one"
        budget = self.continuation.budget
        if finish == "length" and budget > 0:
            raise EngineError(
                f"the server ended it {budget} tokens short of its budget: its context or its cache "
                "(--context-length, --max-total-tokens) is too small"
            )
        return finish
