"""Answer the requests of SGLang's HTTP protocol with an embedded engine.

    POST /generate ─► EmbeddedEngine.submit ─► its Stream ─► server-sent events, one for each increment
    POST /pause_generation, /continue_generation, /abort_request, /flush_cache
    POST /release_memory_occupation, /resume_memory_occupation
    POST /update_weights_from_disk, /update_weights_from_distributed, /weights_checker
    POST /init_weights_update_group, /destroy_weights_update_group
    GET  /health, /server_info, /model_info, /v1/loads

Requests are answered between two passes of the engine's loop. Only weights that are broadcast arrive in threads, while
the engine generates, and they take effect all at once. Bad input gets a 4xx.
"""

import asyncio
import hmac
import itertools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from aiohttp.web import Request, Response, StreamResponse

from arl.clock import in_thread
from arl.engine.embedded.batching import EmbeddedEngine
from arl.engine.embedded.request_rows import Stream
from arl.engine.embedded.translate import chunk_of, joined, requests_of
from arl.engine.http import wire
from arl.errors import EngineError
from arl.sync.node_copy import NODE_COPY, HeldVersion, NodeCopies
from arl.sync.process_group import Receiver, bucket_of
from arl.sync.weight_messages import (
    STAGES,
    Checked,
    Checksums,
    CheckWeights,
    GroupJoined,
    InitGroup,
    LeaveGroup,
    Memory,
    MemoryTag,
    UpdateFromDisk,
    UpdateFromDistributed,
)
from arl.types import GenerateRequest, Increment, WeightUpdate

Body = TypeVar("Body")
Handler = Callable[[Request], Awaitable[StreamResponse]]


class EngineRoutes:
    """Handle SGLang's HTTP requests with one EmbeddedEngine.

    Args:
        engine: runs already, or will
        model_path: directory of the weights that the engine began with
        eos: stop tokens of the model
        key: bearer token that every request must have; None: none is needed
        broadcast_seconds: after which a broadcast that does not move is given up
        copies: of published files, shared with the other servers of this node; None: they are read where they are
    """

    def __init__(
        self,
        engine: EmbeddedEngine,
        model_path: str,
        eos: tuple[int, ...],
        key: str | None,
        broadcast_seconds: float,
        copies: NodeCopies | None = None,
    ) -> None:
        self._engine = engine
        self._model_path = model_path
        self._eos = eos
        self._key = key
        self._released: set[MemoryTag] = set()
        self._names = (f"anonymous-{i}" for i in itertools.count())
        self._receiver = Receiver(broadcast_seconds)
        self._broadcast_seconds = broadcast_seconds
        self._copies = copies

    def app(self) -> web.Application:
        """Return the application with every route."""
        app = web.Application(middlewares=[self._guard], client_max_size=1 << 28)
        app.add_routes(
            [
                web.post("/generate", self._generate),
                web.post("/pause_generation", self._pause),
                web.post("/continue_generation", self._continue),
                web.post("/abort_request", self._abort),
                web.post("/update_weights_from_disk", self._update),
                web.post("/init_weights_update_group", self._join),
                web.post("/destroy_weights_update_group", self._leave),
                web.post("/update_weights_from_distributed", self._receive),
                web.post("/weights_checker", self._check_weights),
                web.post("/flush_cache", self._flush),
                web.post("/release_memory_occupation", self._release),
                web.post("/resume_memory_occupation", self._resume_memory),
                web.get("/health", self._health),
                web.get("/server_info", self._server_info),
                web.get("/model_info", self._model_info),
                web.get("/v1/loads", self._loads),
            ]
        )
        return app

    @web.middleware
    async def _guard(self, request: Request, handler: Handler) -> StreamResponse:
        """Refuse requests without the run's key, and answer bad input with a 4xx that says what is wrong."""
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if self._key and not hmac.compare_digest(given, f"Bearer {self._key}".encode()):
            return _error(401, "this server needs its run key: Authorization: Bearer <key>")
        try:
            return await handler(request)
        except (EngineError, msgspec.DecodeError, UnicodeDecodeError) as error:
            return _error(400, str(error))

    async def _generate(self, request: Request) -> StreamResponse:
        body = await _read(request, wire.Generate)
        if self._released:
            raise EngineError("memory is released: /resume_memory_occupation comes first")
        requests = requests_of(body, self._names, self._eos)
        stream = self._engine.submit(requests)
        try:
            if body.stream:
                return await self._stream(request, body, requests, stream)
            return await self._collect(body, requests, stream)
        finally:  # if the caller has gone, nobody reads what is still open
            self._engine.abort([one.request_id for one in requests])

    async def _stream(
        self, request: Request, body: wire.Generate, requests: list[GenerateRequest], stream: Stream
    ) -> StreamResponse:
        """Answer with one event for each increment, until all requests have ended."""
        response = StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        counts = [0] * len(requests)
        num_open = len(requests)
        try:
            while num_open:
                events = []
                for index, increment in await stream.take():
                    counts[index] += len(increment.token_ids)
                    if increment.finish_reason is not None:
                        num_open -= 1
                    chunk = chunk_of(
                        requests[index],
                        index=index,
                        new=increment,
                        num_tokens=counts[index],
                        loaded_version=self._engine.loaded_version,
                        with_logprobs=body.return_logprob,
                    )
                    events.append(_event(msgspec.json.encode(chunk)))
                await response.write(b"".join(events))
        except EngineError as error:  # the status line has been sent, so the stream has to say it
            await response.write(_event(msgspec.json.encode({"error": {"message": str(error)}})))
        await response.write(_event(wire.DONE))
        return response

    async def _collect(self, body: wire.Generate, requests: list[GenerateRequest], stream: Stream) -> Response:
        """Answer once, when all requests have ended."""
        whole = [Increment((), (), ())] * len(requests)
        while any(increment.finish_reason is None for increment in whole):
            for index, new in await stream.take():
                whole[index] = joined(whole[index], new)
        chunks = []
        for index, increment in enumerate(whole):
            chunk = chunk_of(
                requests[index],
                index=index,
                new=increment,
                num_tokens=len(increment.token_ids),
                loaded_version=self._engine.loaded_version,
                with_logprobs=body.return_logprob,
            )
            chunks.append(chunk)
        is_single = not isinstance(body.input_ids[0], list)
        return _json(chunks[0] if is_single else chunks)

    async def _pause(self, request: Request) -> Response:
        body = await _read(request, wire.Pause)
        await self._engine.pause(body.mode)
        return _json({"status": "ok"})

    async def _continue(self, request: Request) -> Response:
        await self._engine.resume()
        return _json({"status": "ok"})

    async def _abort(self, request: Request) -> Response:
        body = await _read(request, wire.Abort)
        if body.abort_all:
            self._engine.abort_all()
        else:
            self._engine.abort([body.rid])
        return Response()

    async def _update(self, request: Request) -> Response:
        body = await _read(request, UpdateFromDisk)
        with await self._hold(body.model_path) as held:
            if body.load_format == NODE_COPY:
                return _json({"success": True, "message": f"to be read from {held.path}"})
            return await self._load(body.weight_version, body.flush_cache, held.path, None)

    async def _hold(self, path: str) -> HeldVersion:
        """Return where to read the weights that lie at `path`."""
        if self._copies is None:
            return HeldVersion(path)
        try:
            return await in_thread(self._copies.hold, path)
        except OSError as error:
            raise EngineError(f"{path}: the weights cannot be read ({error})") from error

    async def _join(self, request: Request) -> Response:
        body = await _read(request, InitGroup)
        await in_thread(self._receiver.join, body)
        return _json(GroupJoined(success=True, message=STAGES))

    async def _leave(self, request: Request) -> Response:
        body = await _read(request, LeaveGroup)
        seconds = self._broadcast_seconds
        try:
            async with asyncio.timeout(seconds):
                await in_thread(self._receiver.leave, body.group_name)
        except TimeoutError as error:
            raise EngineError(f"group {body.group_name}: it was left, and is not closed after {seconds:g} s") from error
        return _json({"success": True, "message": "left"})

    async def _receive(self, request: Request) -> Response:
        body = await _read(request, UpdateFromDistributed)
        if body.names:
            self._engine.refuse_foreign_tensors(bucket_of(body))
            await in_thread(self._receiver.receive, body)
        if body.weight_version is None:
            return _json({"success": True, "message": "to take effect with the version"})
        return await self._load(body.weight_version, body.flush_cache, "", self._receiver.take(body.group_name))

    async def _load(self, version: str, flush_cache: bool, path: str, state: dict[str, Any] | None) -> Response:
        if not version.isdecimal():
            raise EngineError(f"weight_version {version!r} must be an integer as a string")
        if flush_cache and self._engine.num_open:
            raise EngineError("flush_cache is true while requests are open: pause with mode abort, or send false")
        await self._engine.load(WeightUpdate(int(version), path, state=state))
        return _json({"success": True, "message": f"serving version {version}"})

    async def _check_weights(self, request: Request) -> Response:
        await _read(request, CheckWeights)
        found = await in_thread(self._engine.checksums)
        return _json(Checked([Checksums(found)]))

    async def _flush(self, request: Request) -> Response:
        """Succeed if nothing is open, because nothing else is cached; SGLang refuses as well while something is."""
        if self._engine.num_open:
            raise EngineError(f"{self._engine.num_open} requests are open: the cache cannot be flushed")
        return Response(text="Cache flushed.")

    async def _release(self, request: Request) -> Response:
        """Free the cache's memory. The weights stay, because new ones are copied into them."""
        body = await _read(request, Memory)
        if self._engine.num_open:
            raise EngineError(f"{self._engine.num_open} requests are open: their memory cannot be released")
        self._engine.release_cache()
        self._released.update(body.tags)
        return Response()

    async def _resume_memory(self, request: Request) -> Response:
        """Take back memory that was released; refuse any other, because SGLang dies when asked for what it has."""
        body = await _read(request, Memory)
        tags = set(body.tags)
        if not tags <= self._released:
            raise EngineError(f"{sorted(tags - self._released)} were not released")
        self._released -= tags
        return Response()

    async def _health(self, request: Request) -> Response:
        return Response()

    async def _server_info(self, request: Request) -> Response:
        return _json({"open_requests": self._engine.num_open, "busy_seconds": self._engine.busy_seconds})

    async def _loads(self, request: Request) -> Response:
        load = await self._engine.report()
        own = wire.RankLoad(
            num_running_reqs=load.running,
            num_waiting_reqs=load.waiting,
            max_running_requests=load.slots,
            num_total_tokens=load.tokens,
            max_total_num_tokens=load.capacity,
        )
        return _json(wire.Loads([own]))

    async def _model_info(self, request: Request) -> Response:
        info = wire.ModelInfo(
            model_path=self._model_path,
            weight_version=str(self._engine.loaded_version),
            vocab_size=self._engine.vocab_size,
            context_length=self._engine.context,
        )
        return _json(info)


async def _read(request: Request, kind: type[Body]) -> Body:
    return msgspec.json.decode(await request.read() or b"{}", type=kind)


def _json(value: Any) -> Response:
    return Response(body=msgspec.json.encode(value), content_type="application/json")


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def _error(status: int, message: str) -> Response:
    body = msgspec.json.encode({"error": {"message": message, "code": status}})
    return Response(status=status, body=body, content_type="application/json")
