"""Answer the requests of SGLang's HTTP protocol with an embedded engine.

    POST /generate ─► EmbeddedEngine.submit ─► its Stream ─► server-sent events, one for each increment
    POST /pause_generation, /continue_generation, /abort_request, /flush_cache
    POST /release_memory_occupation, /resume_memory_occupation
    POST … that concern weights: see weight_routes
    GET  /health, /server_info, /model_info, /v1/loads

Requests are answered between two passes of the engine's loop. Bad input gets a 4xx (http_edge).
"""

import asyncio
import secrets
from collections.abc import Iterator

import msgspec
from aiohttp.web import BaseRequest, Response, StreamResponse

from arl.engine.embedded.batching import EmbeddedEngine
from arl.engine.embedded.http_edge import Routes, json_answer, read_body
from arl.engine.embedded.request_rows import Stream
from arl.engine.embedded.translate import chunk_of, failed_chunk, joined, requests_of
from arl.engine.embedded.weight_routes import WeightRoutes
from arl.engine.http import wire
from arl.errors import EngineError
from arl.sync.node_copy import NodeCopies
from arl.sync.weight_messages import Memory, MemoryTag
from arl.types import GenerateRequest, Increment


class EngineRoutes:
    """Handle SGLang's HTTP requests with one EmbeddedEngine.

    Args:
        engine: runs already, or will
        model_path: directory of the weights that the engine began with
        eos: stop tokens of the model
        broadcast_seconds: after which a broadcast that does not move is given up
        copies: of published files, shared with the other servers of this node; None: they are read where they are
    """

    def __init__(
        self,
        engine: EmbeddedEngine,
        model_path: str,
        eos: tuple[int, ...],
        broadcast_seconds: float,
        copies: NodeCopies | None = None,
    ) -> None:
        self._engine = engine
        self._model_path = model_path
        self._eos = eos
        self._released: set[MemoryTag] = set()
        self._names = _new_names()
        self.weights = WeightRoutes(engine, broadcast_seconds, copies)

    def routes(self) -> Routes:
        """Return what answers each path."""
        return {
            "/generate": ("POST", self._generate),
            "/pause_generation": ("POST", self._pause),
            "/continue_generation": ("POST", self._continue),
            "/abort_request": ("POST", self._abort),
            "/flush_cache": ("POST", self._flush),
            "/release_memory_occupation": ("POST", self._release),
            "/resume_memory_occupation": ("POST", self._resume_memory),
            "/health": ("GET", self._health),
            "/server_info": ("GET", self._server_info),
            "/model_info": ("GET", self._model_info),
            "/v1/loads": ("GET", self._loads),
            **self.weights.routes(),
        }

    async def _generate(self, request: BaseRequest) -> StreamResponse:
        body = await read_body(request, wire.Generate)
        await asyncio.sleep(0)  # others have their turns between the decoding of a large batch and its checks
        if self._released:
            raise EngineError("memory is released: /resume_memory_occupation comes first")
        requests = requests_of(body, self._names, self._eos)
        stream = self._engine.submit(requests)
        try:
            if body.stream:
                return await self._stream(request, body, requests, stream)
            return await self._collect(body, requests, stream)
        finally:  # if the caller has gone, nobody reads what is still open
            self._engine.leave(stream)

    async def _stream(
        self, request: BaseRequest, body: wire.Generate, requests: list[GenerateRequest], stream: Stream
    ) -> StreamResponse:
        """Answer with one event for each increment, until all requests have ended."""
        response = StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        counts = [0] * len(requests)
        num_open = len(requests)
        try:
            while num_open:
                events = []
                for index, new in await stream.take():
                    if isinstance(new, EngineError):
                        chunk = failed_chunk(requests[index], index, counts[index], new)
                    else:
                        counts[index] += len(new.token_ids)
                        chunk = self._chunk(body, requests[index], index, new, counts[index])
                    num_open -= chunk.meta_info.finish_reason is not None
                    events.append(_event(msgspec.json.encode(chunk)))
                await response.write(b"".join(events))
        except EngineError as error:  # the status line has been sent, so the stream has to say it
            await response.write(_event(msgspec.json.encode({"error": {"message": str(error)}})))
        await response.write(_event(wire.DONE))
        return response

    async def _collect(self, body: wire.Generate, requests: list[GenerateRequest], stream: Stream) -> Response:
        """Answer once, when all requests have ended. Of a batch, one that fails has an answer of its own."""
        whole: dict[int, Increment] = {}
        chunks: dict[int, wire.Chunk] = {}
        is_single = not isinstance(body.input_ids[0], list)
        while len(chunks) < len(requests):
            for index, new in await stream.take():
                request = requests[index]
                if isinstance(new, EngineError):
                    if is_single:
                        raise new
                    chunks[index] = failed_chunk(request, index, 0, new)
                    continue
                whole[index] = joined(whole[index], new) if index in whole else new
                if new.finish_reason is not None:
                    chunks[index] = self._chunk(body, request, index, whole[index], len(whole[index].token_ids))
        return json_answer(chunks[0] if is_single else [chunks[index] for index in range(len(requests))])

    def _chunk(
        self, body: wire.Generate, request: GenerateRequest, index: int, new: Increment, num_tokens: int
    ) -> wire.Chunk:
        return chunk_of(
            request,
            index=index,
            new=new,
            num_tokens=num_tokens,
            loaded_version=self._engine.loaded_version,
            with_logprobs=bool(body.return_logprob),
        )

    async def _pause(self, request: BaseRequest) -> Response:
        body = await read_body(request, wire.Pause)
        await self._engine.pause(body.mode)
        return json_answer({"status": "ok"})

    async def _continue(self, request: BaseRequest) -> Response:
        await read_body(request, wire.Nothing)
        await self._engine.resume()
        return json_answer({"status": "ok"})

    async def _abort(self, request: BaseRequest) -> Response:
        body = await read_body(request, wire.Abort)
        if body.abort_all:
            self._engine.abort_all()
        else:
            self._engine.abort([body.rid])
        return Response()

    async def _flush(self, request: BaseRequest) -> Response:
        """Succeed if nothing is open, because nothing else is cached; SGLang refuses as well while something is."""
        await read_body(request, wire.Nothing)
        if self._engine.num_open:
            raise EngineError(f"{self._engine.num_open} requests are open: the cache cannot be flushed")
        return Response(text="Cache flushed.")

    async def _release(self, request: BaseRequest) -> Response:
        """Free the cache's memory. The weights stay, because new ones are copied into them."""
        body = await read_body(request, Memory)
        if self._engine.num_open:
            raise EngineError(f"{self._engine.num_open} requests are open: their memory cannot be released")
        self._engine.release_cache()
        self._released.update(body.kinds)
        return Response()

    async def _resume_memory(self, request: BaseRequest) -> Response:
        """Take back memory that was released; refuse any other, because SGLang dies when asked for what it has."""
        body = await read_body(request, Memory)
        tags = body.kinds
        if not tags <= self._released:
            raise EngineError(f"{sorted(tags - self._released)} were not released")
        self._released -= tags
        return Response()

    async def _health(self, request: BaseRequest) -> Response:
        return Response()

    async def _server_info(self, request: BaseRequest) -> Response:
        return json_answer({"open_requests": self._engine.num_open, "busy_seconds": self._engine.busy_seconds})

    async def _loads(self, request: BaseRequest) -> Response:
        load = await self._engine.report()
        own = wire.RankLoad(
            num_running_reqs=load.running,
            num_waiting_reqs=load.waiting,
            max_running_requests=load.slots,
            num_total_tokens=load.tokens,
            max_total_num_tokens=load.capacity,
        )
        return json_answer(wire.Loads([own]))

    async def _model_info(self, request: BaseRequest) -> Response:
        info = wire.ModelInfo(
            model_path=self._model_path,
            weight_version=str(self._engine.loaded_version),
            vocab_size=self._engine.vocab_size,
            context_length=self._engine.context,
        )
        return json_answer(info)


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def _new_names() -> Iterator[str]:
    """Yield ids for requests that bring none. No caller can guess one and take it first."""
    while True:
        yield secrets.token_hex(16)
