"""One generate() call of the engine client: what was asked, and what was said so far. Torch-free."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

import msgspec

from arl.engine import wire
from arl.errors import EngineError, RunError
from arl.types import FinishReason, GenerateRequest, Increment

_chunks = msgspec.json.Decoder(wire.Chunk)


def decode(data: bytes) -> wire.Chunk:
    """Read one event.

    Raises:
        EngineError: it is not an increment; quotes it.
    """
    try:
        return _chunks.decode(data)
    except msgspec.DecodeError as error:
        raise EngineError(f"{error}: {data[:500]!r}") from error


@dataclass(eq=False)
class Call:
    request: GenerateRequest
    serial: int  # in order of arrival
    rid: str = ""  # on the wire; new each time it is sent, since a server may not have let go of the last one
    said: list[int] = field(default_factory=list)
    events: deque[Increment | RunError] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    sent: asyncio.Event = field(default_factory=asyncio.Event)  # the server knows of it, or never will
    closed: bool = False  # by the caller

    def put(self, event: Increment | RunError) -> None:
        self.events.append(event)
        self.arrived.set()

    def fail(self, url: str, reason: object, kind: type[EngineError] = EngineError) -> None:
        self.put(kind(f"{url}: request {self.request.request_id}: {reason}"))

    @property
    def budget(self) -> int:
        """Tokens it may still say."""
        return self.request.sampling.max_new_tokens - len(self.said)

    def hear(self, chunk: wire.Chunk, paused: bool) -> bool:
        """Take one increment; True when a pause cut the call short and the rest is to be asked for.

        Raises:
            EngineError: inconsistent, or an abort that no pause since the call was sent explains.
        """
        ids, meta = chunk.output_ids, chunk.meta_info
        if len(meta.output_token_logprobs) != len(ids):
            raise EngineError(f"{len(ids)} ids came with {len(meta.output_token_logprobs)} logprobs")
        self.said += ids
        reason = self._finish(meta.finish_reason.type) if meta.finish_reason else None
        aborted = reason == "abort"
        if ids or (reason and not aborted):
            logprobs = tuple(logprob for logprob, _, _ in meta.output_token_logprobs)
            versions = wire.versions_of(meta.weight_versions, len(ids))
            self.put(Increment(tuple(ids), logprobs, versions, None if aborted else reason))
        if not aborted or self.closed:
            return False
        if not paused:
            message = meta.finish_reason.message if meta.finish_reason else None
            raise EngineError(f"the server aborted it without being asked to: {message}")
        self.sent.clear()
        return True

    def _finish(self, reason: FinishReason) -> FinishReason:
        """What really ended it: a stop token wins over the budget, and both over an abort."""
        if self.said and self.said[-1] in self.request.sampling.stop_token_ids:
            return "stop"
        return "length" if reason == "abort" and self.budget == 0 else reason
