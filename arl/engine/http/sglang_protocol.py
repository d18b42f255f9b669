"""Speak SGLang's HTTP protocol with one server, SGLang's own or arl's: every route and message of it. Torch-free.

    BatchSender   generate, abort                                                              ─┐
    HttpEngine    introduce, load, pause_in_place, continue_in_place, abort_all, flush_cache   ─┼─► one server
    WeightLoader  what arl.sync.weight_loader.WeightServer lists                               ─┘

What a replica does with these, to pause, to continue, to swap, is the same for every protocol and stands in those
files. A server of another protocol needs another class with these methods.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from arl.engine.base import Load
from arl.engine.http import wire
from arl.engine.http.connection import Http
from arl.errors import EngineError
from arl.sync.buckets import TensorSpec
from arl.sync.group_sender import Rendezvous
from arl.sync.weight_loader import MemoryTag
from arl.types import FinishReason, GenerateRequest

T = TypeVar("T")
_chunks = msgspec.json.Decoder(wire.Chunk)


class Piece(Struct, frozen=True):
    """Carry new tokens of one request of a batch."""

    index: int  # of the request
    token_ids: list[int]
    logprobs: Sequence[float]  # of these tokens
    versions: list[tuple[int, int]]  # (version, tokens that it has sampled) in order; the last end with these tokens
    is_exact: bool  # the server says which version sampled which token; else `versions` holds what it had loaded
    finish: FinishReason | None
    message: str = ""  # about an abort


class Introduction(NamedTuple):
    """Describe a server, as it does itself."""

    version: int
    model_path: str
    vocab_size: int  # 0: it does not say
    context: int  # 0: it does not say


class SGLangProtocol:
    """Send SGLang's requests over `http`. Each method but `generate` ends within the deadline of `http`.

    Every method raises EngineError where the server refuses or answers something else, EngineLost where it is gone, and
    DeadlineError where it is silent.
    """

    def __init__(self, http: Http) -> None:
        self._http = http
        self.url = http.url

    async def introduce(self) -> Introduction:
        """Ask for its version and its limits."""
        info = await self._ask("/model_info", None, wire.ModelInfo)
        try:
            version = wire.version_number(info.weight_version)
        except ValueError as error:
            raise EngineError(f"{self.url}/model_info: {error}; start SGLang with --weight-version 0") from error
        return Introduction(version, info.model_path, info.vocab_size or 0, info.context_length or 0)

    async def load(self) -> Load:
        """Ask for its load. An SGLang without such a route counts as idle: then its open requests decide."""
        status, body = await self._http.ask("/v1/loads?include=core")
        if status == 404:
            return wire.Loads([]).total
        return self._decode(f"/v1/loads answered {status}", body, wire.Loads).total

    # ---- generation

    @contextlib.asynccontextmanager
    async def generate(
        self, names: Sequence[str], requests: Sequence[GenerateRequest], cache_key: str | None
    ) -> AsyncIterator[AsyncIterator[Iterator[Piece]]]:
        """Send a batch, and yield what arrives, until the server has sent all of it. The caller has the deadline.

        Args:
            names: of the requests. An abort ends every name that begins with its own, so none may begin another.
            requests: as long as `names`
            cache_key: what its prefix cache is keyed by; None: by tokens alone
        """
        body = wire.Generate(
            input_ids=[list(request.input_ids) for request in requests],
            rid=list(names),
            sampling_params=[wire.sampling_of(request.sampling) for request in requests],
            stream=True,
            return_logprob=True,
            extra_key=None if cache_key is None else [cache_key] * len(requests),
        )
        async with self._http.stream("/generate", body) as events:
            yield _answers(events, len(requests))

    async def abort(self, name: str) -> None:
        """Have it end one request."""
        assert name, "an empty name would abort every request"
        await self._http.command("/abort_request", wire.Abort(name))

    async def abort_all(self) -> None:
        """Have it end every request that it knows of."""
        # SGLang's own pause in mode abort does the same, and then sleeps for a second.
        await self._http.command("/abort_request", wire.Abort(abort_all=True))

    async def pause_in_place(self) -> None:
        """Stop between two passes; open requests keep their cache."""
        await self._http.command("/pause_generation", wire.Pause("in_place"))

    async def continue_in_place(self) -> None:
        """End `pause_in_place`."""
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
        body = wire.UpdateFromDisk(path, str(version), flush_cache=False)
        await self._http.command("/update_weights_from_disk", body)

    async def map_bucket(self, handles: Sequence[bytes], version: int | None) -> None:
        """Map one bucket of shared memory; `handles` are those for each worker."""
        body = wire.UpdateFromTensor(list(handles), _text(version), flush_cache=False)
        await self._http.command("/update_weights_from_tensor", body)

    async def join_group(self, name: str, at: Rendezvous, first_rank: int, world_size: int) -> None:
        """Join a process group whose rank 0 is the trainer's; the first worker is `first_rank`."""
        body = wire.InitGroup(
            master_address=at.host,
            master_port=at.port,
            rank_offset=first_rank,
            world_size=world_size,
            group_name=name,
            backend=at.backend,
        )
        await self._http.command("/init_weights_update_group", body)

    async def receive_bucket(self, group: str, bucket: Sequence[TensorSpec], version: int | None) -> None:
        """Receive one bucket that rank 0 sends."""
        body = wire.UpdateFromDistributed(
            names=[spec.name for spec in bucket],
            dtypes=[spec.dtype for spec in bucket],
            shapes=[list(spec.shape) for spec in bucket],
            group_name=group,
            load_format=wire.BUCKETS,
            weight_version=_text(version),
            flush_cache=False,
        )
        await self._http.command("/update_weights_from_distributed", body)

    async def leave_group(self, name: str) -> None:
        """Leave a process group."""
        await self._http.command("/destroy_weights_update_group", wire.LeaveGroup(name))

    async def release_memory(self, tags: Sequence[MemoryTag]) -> None:
        """Release memory. SGLang dies if it is not idle."""
        await self._http.command("/release_memory_occupation", wire.Memory(list(tags)))

    async def resume_memory(self, tag: MemoryTag) -> None:
        """Take memory back. SGLang dies when asked for what it has."""
        await self._http.command("/resume_memory_occupation", wire.Memory([tag]))

    async def checksums(self) -> dict[str, str]:
        """Return the sha256 of every weight, which only a server with one worker knows."""
        checked = await self._ask("/weights_checker", wire.CheckWeights(), wire.Checked)
        if len(checked.ranks) != 1:
            raise EngineError(f"{self.url}/weights_checker: {len(checked.ranks)} workers answered, and not one")
        return checked.ranks[0].checksums

    async def _ask(self, path: str, body: Struct | None, kind: type[T]) -> T:
        return self._decode(path, await self._http.command(path, body), kind)

    def _decode(self, what: str, answer: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(answer, type=kind)
        except msgspec.DecodeError as error:
            raise EngineError(f"{self.url}{what}: {error}: {answer[:200]!r}") from error


def _text(version: int | None) -> str | None:
    return None if version is None else str(version)


async def _answers(events: AsyncIterator[list[bytes]], num_requests: int) -> AsyncIterator[Iterator[Piece]]:
    received = [0] * num_requests  # tokens of each request
    async for together in events:
        yield _pieces(together, received)
        if together and together[-1] == wire.DONE:
            return


def _pieces(together: Sequence[bytes], received: list[int]) -> Iterator[Piece]:
    for data in together:
        if data != wire.DONE:
            yield _piece(data, received)


def _piece(data: bytes, received: list[int]) -> Piece:
    """Read one server-sent event, and count its tokens in `received`.

    An abort of a request that waits in the server repeats the last token that was sent, which is left out.

    Raises:
        EngineError: it is no increment, does not follow on the last one, or its ids and logprobs do not fit.
    """
    try:
        chunk = _chunks.decode(data)
    except ValueError as error:
        raise EngineError(f"{error}: {data[:500]!r}") from error
    meta = chunk.meta_info
    if not 0 <= chunk.index < len(received):
        raise EngineError(f"an increment is said to be of request {chunk.index}, which has ended or never was")
    ids = chunk.output_ids
    triples = meta.output_token_logprobs
    count = meta.completion_tokens - received[chunk.index]
    finish = meta.finish_reason
    is_aborted = finish is not None and finish.type == "abort"
    if is_aborted and 0 <= count <= min(len(ids), len(triples)):
        ids = ids[len(ids) - count :]
        triples = triples[len(triples) - count :]
    if count != len(ids):
        raise EngineError("increments do not add up: SGLang needs --incremental-streaming-output")
    if [token for _, token, _ in triples] != ids:
        raise EngineError(f"{len(ids)} ids came with {len(triples)} logprobs of their own")
    received[chunk.index] += count
    return Piece(
        index=chunk.index,
        token_ids=ids,
        logprobs=[logprob for logprob, _, _ in triples],
        versions=_versions(meta, count),
        is_exact=meta.weight_versions is not None,
        finish=None if finish is None else finish.type,
        message="" if finish is None else finish.message or "",
    )


def _versions(meta: wire.MetaInfo, count: int) -> list[tuple[int, int]]:
    """Return the versions of the last tokens, `count` at least.

    Raises:
        EngineError: a version is not an integer.
    """
    try:
        if meta.weight_versions is not None:
            return [(wire.version_number(span.version), span.end - span.start) for span in meta.weight_versions]
        return [(wire.version_number(meta.weight_version), count)] if count else []
    except ValueError as error:
        raise EngineError(str(error)) from None
