"""One generate() call of the engine client: what was asked, and what was said so far. Torch-free."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

import msgspec

from arl.engine.http import wire
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
    heard: int = 0  # tokens since it was last sent
    unsettled: list[tuple[int, float]] = field(default_factory=list)  # (id, logprob) of a version not known yet
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

    def hear(self, chunk: wire.Chunk, paused: bool, swapped: bool) -> bool:
        """Take one increment; True when a pause cut the call short and the rest is to be asked for.

        Args:
            chunk: of this call
            paused: there was a pause since the call was sent
            swapped: weights were loaded since, under the open call: until the server tells the spans, which it does
                at the end, nobody can say which of the next tokens the old ones still sampled

        Raises:
            EngineError: inconsistent, or an abort that no pause since the call was sent explains.
        """
        meta = chunk.meta_info
        aborted = meta.finish_reason is not None and meta.finish_reason.type == "abort"
        fresh = self._fresh(chunk, aborted)
        self.heard += len(fresh)
        self.said += [token for token, _ in fresh]
        self.unsettled += fresh
        reason = self._finish(meta.finish_reason.type) if meta.finish_reason else None
        if meta.finish_reason or meta.weight_versions or not swapped:
            self._settle(meta, swapped, None if reason == "abort" else reason)
        if reason != "abort" or self.closed:
            return False
        if not paused:
            message = meta.finish_reason.message if meta.finish_reason else None
            raise EngineError(f"the server aborted it without being asked to: {message}")
        self.sent.clear()
        self.heard = 0
        return True

    def _fresh(self, chunk: wire.Chunk, aborted: bool) -> list[tuple[int, float]]:
        """Its (id, logprob) pairs; an abort in the server's line repeats the last one said."""
        ids, meta = chunk.output_ids, chunk.meta_info
        told = [(token, logprob) for logprob, token, _ in meta.output_token_logprobs]
        count = meta.completion_tokens - self.heard
        if aborted and 0 <= count <= min(len(ids), len(told)):
            ids, told = ids[len(ids) - count :], told[len(told) - count :]
        if count != len(ids):
            raise EngineError("increments do not add up: SGLang needs --incremental-streaming-output")
        if [token for token, _ in told] != ids:
            raise EngineError(f"{len(ids)} ids came with {len(told)} logprobs of their own")
        return told

    def _settle(self, meta: wire.MetaInfo, swapped: bool, reason: FinishReason | None) -> None:
        """Hand on what is unsettled, with its versions."""
        pairs, self.unsettled = self.unsettled, []
        if not pairs and reason is None:
            return
        if meta.weight_versions is not None:
            versions = wire.versions_of(meta.weight_versions, len(pairs))
        elif swapped and pairs:
            raise EngineError(
                "it does not tell which version sampled a token: engine.kv_policy keep needs SGLang 0.5.18"
            )
        else:
            versions = (int(meta.weight_version),) * len(pairs)
        self.put(Increment(tuple(t for t, _ in pairs), tuple(p for _, p in pairs), versions, reason))

    def _finish(self, reason: FinishReason) -> FinishReason:
        """What really ended it: a stop token wins over the budget, and both over an abort.

        Raises:
            EngineError: it ended short of its budget: the server has less room than its model.
        """
        if self.said and self.said[-1] in self.request.sampling.stop_token_ids:
            return "stop"
        if reason == "length" and self.budget > 0:
            raise EngineError(
                f"the server ended it {self.budget} tokens short of its budget: its context or its cache "
                "(--context-length, --max-total-tokens) is too small"
            )
        return "length" if reason == "abort" and self.budget == 0 else reason
