"""Speak SGLang's HTTP protocol with one server, SGLang's own or arl's: every route and message of it. Torch-free.

    BatchSender   generate, abort                                                              ─┐
    HttpEngine    introduce, load, pause, continue_generation, abort_all, flush_cache           ─┼─► one server
    WeightLoader  what arl.sync.weight_loader.WeightServer lists                               ─┘

What a replica does with these, to pause, to continue, to swap, is the same for every protocol and stands in those
files. For a server of another protocol, a class that overrides these methods is given to `connect_http`.
"""

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from arl.engine.base import IDLE, Load
from arl.engine.http import wire
from arl.engine.http.connection import Http
from arl.errors import EngineError
from arl.sync.buckets import TensorSpec
from arl.sync.group_sender import Rendezvous
from arl.sync.weight_loader import MemoryTag
from arl.types import FinishReason, GenerateRequest, SamplingParams, ScoreRequest, TokenScores

T = TypeVar("T")
_chunks = msgspec.json.Decoder(wire.Chunk)


class Piece(Struct, frozen=True):
    """Carry new tokens of one request of a batch."""

    index: int  # of the request
    token_ids: list[int]
    logprobs: Sequence[float]  # of these tokens
    versions: list[tuple[int, int]]  # (version, tokens that it has sampled) in order; the last end with these tokens
    finish: FinishReason | None
    message: str | None  # about an abort


class SGLangProtocol:
    """Send SGLang's requests over `http`. Each method but `generate` ends within the deadline of `http`.

    Every method raises EngineError where the server refuses or answers something else, EngineLost where it is gone, and
    DeadlineError where it is silent.
    """

    def __init__(self, http: Http) -> None:
        self._http = http
        self.url = http.url

    async def introduce(self) -> tuple[wire.ModelInfo, int]:
        """Ask for its model and its version."""
        path = "/model_info"
        info = self._decode(path, await self._http.command(path), wire.ModelInfo)
        if not info.weight_version.isdecimal():
            raise EngineError(
                f"{self.url}{path}: version {info.weight_version[:40]!r} must be an integer, as a string; start "
                "SGLang with --weight-version 0"
            )
        return info, int(info.weight_version)

    async def load(self) -> Load:
        """Ask for its load. An SGLang without such a route counts as idle: then its open requests decide."""
        path = "/v1/loads?include=core"
        status, body = await self._http.ask(path)
        return IDLE if status == 404 else self._decode(path, body, wire.Loads).total

    # ---- generation

    @contextlib.asynccontextmanager
    async def generate(
        self, names: list[str], requests: Sequence[GenerateRequest], cache_key: str | None
    ) -> AsyncIterator[AsyncIterator[list[Piece]]]:
        """Send a batch, and yield what arrives, until the server has sent all of it. The caller has the deadline.

        Args:
            names: of the requests. An abort ends every name that begins with its own, so none may begin another.
            requests: as long as `names`
            cache_key: what its prefix cache is keyed by; None: by tokens alone
        """
        body = wire.Generate(
            input_ids=[request.input_ids for request in requests],
            rid=names,
            sampling_params=[wire.sampling_of(request.sampling) for request in requests],
            extra_key=None if cache_key is None else [cache_key] * len(requests),
        )
        async with self._http.stream("/generate", body) as events:
            yield _answers(events, len(requests))

    async def score(self, request: ScoreRequest, seconds: float) -> TokenScores:
        """Have it prefill a sequence within `seconds`, and return what it says of the tokens from `start` on."""
        path = "/generate"
        first = request.start - 1  # the number of a token comes with the one behind it
        sampling = SamplingParams(max_new_tokens=0, temperature=request.temperature)
        body = wire.Score(request.token_ids, request.request_id, wire.sampling_of(sampling), first, request.top_k)
        meta = self._decode(path, await self._http.command(path, body, seconds), wire.ScoreAnswer).meta_info
        given = meta.input_token_logprobs[1:]
        if tuple(token for _, token, _ in given) != request.token_ids[request.start :]:
            raise EngineError(f"{self.url}{path}: scored other tokens than were sent for {request.request_id}")
        scores = TokenScores.empty(len(request.token_ids), request.top_k)
        scores.logprobs[request.start :] = [logprob for logprob, _, _ in given]
        if request.top_k:
            top = [place or [] for place in meta.input_top_logprobs[1:]]
            scores.top_logprobs[request.start :] = [[logprob for logprob, _, _ in place] for place in top]
            scores.top_ids[request.start :] = [[token for _, token, _ in place] for place in top]
        return scores

    async def abort(self, name: str) -> None:
        """Have it end one request."""
        await self._http.command("/abort_request", wire.Abort(name))

    async def abort_all(self) -> None:
        """Have it end every request that it knows of."""
        # SGLang's own pause in mode abort does the same, and then sleeps for a second.
        await self._http.command("/abort_request", wire.Abort(abort_all=True))

    async def pause(self, mode: wire.PauseMode) -> None:
        """Stop between two passes; open requests stay open, and keep their cache or give it up."""
        await self._http.command("/pause_generation", wire.Pause(mode))

    async def continue_generation(self) -> None:
        """End `pause`."""
        await self._http.command("/continue_generation", {})

    async def flush_cache(self) -> bool:
        """Drop prefixes of the old weights; False: it refuses, because its scheduler is still busy."""
        status, body = await self._http.ask("/flush_cache", {})
        if status not in (200, 400):
            raise EngineError(f"{self.url}/flush_cache answered {status}: {body[:500]!r}")
        return status == 200

    # ---- weights: see arl.sync.weight_loader.WeightServer

    async def load_directory(self, path: str, version: int) -> None:
        """Read the weights of a directory."""
        await self._http.command("/update_weights_from_disk", wire.UpdateFromDisk(path, str(version)))

    async def map_weights(self, handles: Sequence[bytes], version: int) -> None:
        """Map shared memory; `handles` are those for each worker."""
        body = {"serialized_named_tensors": handles, "weight_version": str(version), "flush_cache": False}
        await self._http.command("/update_weights_from_tensor", body)  # msgspec writes bytes as base64

    async def join_group(self, name: str, at: Rendezvous, first_rank: int, world_size: int) -> None:
        """Join a process group whose rank 0 is the trainer's; the first worker is `first_rank`."""
        body = wire.InitGroup(name, at.host, at.port, first_rank, world_size, at.backend)
        await self._http.command("/init_weights_update_group", body)

    async def receive(self, group: str, buckets: Sequence[Sequence[TensorSpec]], version: int) -> None:
        """Receive what rank 0 sends, in one request: a bucket arrives while the one before is loaded."""
        specs = [spec for bucket in buckets for spec in bucket]
        body = wire.UpdateFromDistributed(
            group_name=group,
            names=[spec.name for spec in specs],
            dtypes=[spec.dtype for spec in specs],
            shapes=[spec.shape for spec in specs],
            weight_version=str(version),
            load_format=wire.BUCKETS + ",".join(str(len(bucket)) for bucket in buckets),
        )
        await self._http.command("/update_weights_from_distributed", body)

    async def leave_group(self, name: str) -> None:
        """Leave a process group."""
        await self._http.command("/destroy_weights_update_group", wire.LeaveGroup(name))

    async def release_memory(self, tags: Sequence[MemoryTag]) -> None:
        """Release memory. SGLang dies if it is not idle."""
        await self._http.command("/release_memory_occupation", {"tags": tags})

    async def resume_memory(self, tag: MemoryTag) -> None:
        """Take memory back. SGLang dies when asked for what it has."""
        await self._http.command("/resume_memory_occupation", {"tags": [tag]})

    async def checksums(self) -> dict[str, str]:
        """Return the sha256 of every weight, which only a server with one worker knows."""
        path = "/weights_checker"
        answer = await self._http.command(path, {"action": "checksum"})
        return self._decode(path, answer, wire.Checked).ranks[0].checksums

    def _decode(self, path: str, answer: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(answer, type=kind)
        except msgspec.DecodeError as error:
            raise EngineError(f"{self.url}{path}: {error}: {answer[:200]!r}") from error


async def _answers(events: AsyncIterator[list[bytes]], num_requests: int) -> AsyncIterator[list[Piece]]:
    received = [0] * num_requests  # tokens of each request
    async for together in events:
        yield [_piece(data, received) for data in together if data != wire.DONE]
        if together and together[-1] == wire.DONE:
            return


def _piece(data: bytes, received: list[int]) -> Piece:
    """Read one server-sent event, and count its tokens in `received`.

    An abort of a request that waits in the server repeats the last token that was sent, which is left out.

    Raises:
        EngineError: it is no increment, or does not follow on the last one.
    """
    try:
        chunk = _chunks.decode(data)
        meta = chunk.meta_info
        count = meta.completion_tokens - received[chunk.index]
        versions = [(int(span.version), span.end - span.start) for span in meta.weight_versions]
    except (ValueError, IndexError) as error:
        raise EngineError(f"{error}: {data[:500]!r}") from error
    ids = chunk.output_ids
    triples = meta.output_token_logprobs
    finish = meta.finish_reason
    if finish is not None and finish.type == "abort":
        ids = ids[len(ids) - count :]
        triples = triples[len(triples) - count :]
    if not count == len(ids) == len(triples):
        raise EngineError("increments do not add up: SGLang needs --incremental-streaming-output")
    received[chunk.index] += count
    return Piece(
        index=chunk.index,
        token_ids=ids,
        logprobs=[logprob for logprob, _, _ in triples],
        versions=versions,
        finish=None if finish is None else finish.type,
        message=None if finish is None else finish.message,
    )
