"""Answer the requests of SGLang's HTTP protocol with an embedded engine.

    POST /generate ─► EmbeddedEngine.submit ─► its Stream ─► server-sent events, one for each increment
    POST /pause_generation, /continue_generation, /abort_request, /flush_cache
    POST /release_memory_occupation, /resume_memory_occupation
    POST /update_weights_from_disk           read them in a thread ─► copy them between two passes
    POST /init_weights_update_group          join in a thread
    POST /update_weights_from_distributed    receive in a thread; with the version, copy what was received
    POST /destroy_weights_update_group, /weights_checker
    GET  /health, /model_info, /v1/loads

Requests are answered between two passes of the engine's loop. Whatever may block is done in a thread, while the engine
generates: files on slow disks, hosts that do not answer. Weights take effect all at once. Bad input gets a 4xx.
"""

import asyncio
import os
import secrets
from typing import Any, TypeVar, cast

import msgspec
from aiohttp import web
from aiohttp.web import Request, Response, StreamResponse

from arl.clock import in_thread
from arl.engine.embedded.batching import EmbeddedEngine
from arl.engine.embedded.request_rows import Stream
from arl.engine.http import wire
from arl.errors import EngineError, short_message
from arl.sync.buckets import TensorSpec
from arl.sync.process_group import Receiver
from arl.types import GenerateRequest, Increment, WeightUpdate

Body = TypeVar("Body")


class EngineRoutes:
    """Handle SGLang's HTTP requests with one EmbeddedEngine.

    Args:
        engine: runs already, or will
        model_path: directory of the weights that the engine began with
        eos: stop tokens of the model
        broadcast_seconds: after which a broadcast that does not move is given up, and a group that cannot be joined
    """

    def __init__(self, engine: EmbeddedEngine, model_path: str, eos: tuple[int, ...], broadcast_seconds: float) -> None:
        self._engine = engine
        self._model_path = model_path
        self._eos = eos
        self._receiver = Receiver(broadcast_seconds)
        # One at a time reads, hashes or replaces the weights: what is read has the size of a model in memory, and the
        # hash of weights that change meanwhile is that of no version.
        self._turn = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        """Return what answers each path."""
        return [
            web.post("/generate", self._generate),
            web.post("/pause_generation", self._pause),
            web.post("/continue_generation", self._continue),
            web.post("/abort_request", self._abort),
            web.post("/flush_cache", self._flush),
            web.post("/release_memory_occupation", self._release),
            web.post("/resume_memory_occupation", self._resume_memory),
            web.get("/health", self._health),
            web.get("/model_info", self._model_info),
            web.get("/v1/loads", self._loads),
            web.post("/update_weights_from_disk", self._update),
            web.post("/init_weights_update_group", self._join),
            web.post("/destroy_weights_update_group", self._leave),
            web.post("/update_weights_from_distributed", self._receive),
            web.post("/weights_checker", self._check_weights),
        ]

    async def _generate(self, request: Request) -> StreamResponse:
        body = await _read_body(request, wire.Generate)
        requests = _requests_of(body, self._eos)
        stream = self._engine.submit(requests)
        try:
            if body.stream:
                return await self._stream(request, body, requests, stream)
            return await self._collect(body, requests, stream)
        finally:  # if the caller has gone, nobody reads what is still open
            self._engine.leave(stream)

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
                for index, new in await stream.take():
                    if isinstance(new, EngineError):
                        chunk = _failed_chunk(requests[index], index, counts[index], new)
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
                    chunks[index] = _failed_chunk(request, index, 0, new)
                    continue
                whole[index] = _joined(whole[index], new) if index in whole else new
                if new.finish_reason is not None:
                    chunks[index] = self._chunk(body, request, index, whole[index], len(whole[index].token_ids))
        return _json_answer(chunks[0] if is_single else [chunks[index] for index in range(len(requests))])

    def _chunk(
        self, body: wire.Generate, request: GenerateRequest, index: int, new: Increment, num_tokens: int
    ) -> wire.Chunk:
        """Return the message for increment `new` of a request that has `num_tokens` tokens with it."""
        meta = wire.MetaInfo(
            id=request.request_id,
            finish_reason=_finish(new, num_tokens),
            weight_versions=wire.spans(new.policy_versions),
            prompt_tokens=len(request.input_ids),
            completion_tokens=num_tokens,
            weight_version=str(self._engine.loaded_version),
        )
        if body.return_logprob:
            pairs = zip(new.logprobs, new.token_ids, strict=True)
            meta.output_token_logprobs = [(logprob, token, None) for logprob, token in pairs]
        return wire.Chunk(output_ids=list(new.token_ids), meta_info=meta, index=index)

    async def _pause(self, request: Request) -> Response:
        body = await _read_body(request, wire.Pause)
        await self._engine.pause(body.mode)
        return _json_answer({"status": "ok"})

    async def _continue(self, request: Request) -> Response:
        await _read_body(request, wire.Nothing)
        await self._engine.resume()
        return _json_answer({"status": "ok"})

    async def _abort(self, request: Request) -> Response:
        body = await _read_body(request, wire.Abort)
        if body.abort_all:
            self._engine.abort_all()
        else:
            self._engine.abort([body.rid])
        return Response()

    async def _flush(self, request: Request) -> Response:
        """Succeed if nothing is open, because nothing else is cached; SGLang refuses as well while something is."""
        await _read_body(request, wire.Nothing)
        if self._engine.num_open:
            raise EngineError(f"{self._engine.num_open} requests are open: the cache cannot be flushed")
        return Response(text="Cache flushed.")

    async def _release(self, request: Request) -> Response:
        """Free the cache's memory. The weights stay, because new ones are copied into them."""
        await _read_body(request, wire.Memory)
        if self._engine.num_open:
            raise EngineError(f"{self._engine.num_open} requests are open: their memory cannot be released")
        self._engine.release_cache()
        return Response()

    async def _resume_memory(self, request: Request) -> Response:
        """Do nothing: the next pass takes what it needs."""
        await _read_body(request, wire.Memory)
        return Response()

    async def _update(self, request: Request) -> Response:
        body = await _read_body(request, wire.UpdateFromDisk)
        version = self._version(body.weight_version)
        async with self._turn:
            state = await in_thread(self._engine.read_weights, _directory(body.model_path))
            await self._engine.load(WeightUpdate(version, body.model_path, state=state))
        return _served(version)

    async def _join(self, request: Request) -> Response:
        body = await _read_body(request, wire.InitGroup)
        await in_thread(
            self._receiver.join,
            body.group_name,
            body.master_address,
            body.master_port,
            body.rank_offset,
            body.world_size,
            body.backend,
        )
        return _json_answer({"success": True, "message": "joined"})

    async def _leave(self, request: Request) -> Response:
        body = await _read_body(request, wire.LeaveGroup)
        await in_thread(self._receiver.leave, body.group_name)
        return _json_answer({"success": True, "message": "left"})

    async def _receive(self, request: Request) -> Response:
        body = await _read_body(request, wire.UpdateFromDistributed)
        if body.names:
            columns = zip(body.names, body.dtypes, body.shapes, strict=True)
            bucket = [TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in columns]
            self._engine.refuse_foreign_tensors(bucket)
            await in_thread(self._receiver.receive, body.group_name, bucket)
        if body.weight_version is None:
            return _json_answer({"success": True, "message": "to take effect with the version"})
        version = self._version(body.weight_version)
        async with self._turn:
            await self._engine.load(WeightUpdate(version, state=self._receiver.take(body.group_name)))
        return _served(version)

    async def _check_weights(self, request: Request) -> Response:
        await _read_body(request, wire.CheckWeights)
        async with self._turn:
            found = await in_thread(self._engine.checksums)
        return _json_answer(wire.Checked([wire.Checksums(found)]))

    def _version(self, given: str | None) -> int:
        """Return the version that weights shall have; None: that of the loaded ones."""
        try:
            return self._engine.loaded_version if given is None else wire.version_number(given)
        except ValueError as error:
            raise EngineError(f"weight_version: {error}") from None

    async def _health(self, request: Request) -> Response:
        return Response()

    async def _loads(self, request: Request) -> Response:
        load = await self._engine.report()
        own = wire.RankLoad(
            num_running_reqs=load.running,
            num_waiting_reqs=load.waiting,
            max_running_requests=load.slots,
            num_total_tokens=load.tokens,
            max_total_num_tokens=load.capacity,
        )
        return _json_answer(wire.Loads([own]))

    async def _model_info(self, request: Request) -> Response:
        info = wire.ModelInfo(
            model_path=self._model_path,
            weight_version=str(self._engine.loaded_version),
            vocab_size=self._engine.vocab_size,
            context_length=self._engine.context,
        )
        return _json_answer(info)


def _served(version: int) -> Response:
    return _json_answer({"success": True, "message": f"serving version {version}"})


def _directory(path: str) -> str:
    """Return `path`, if it is a directory: a name would be looked for on the network."""
    if not os.path.isdir(path):
        raise EngineError(f"model_path {path} is no directory on this machine: give one with model.safetensors")
    return path


async def _read_body(request: Request, kind: type[Body]) -> Body:
    """Read and decode the body; one that is missing counts as {}.

    Raises:
        msgspec.DecodeError: it is not of this kind.
    """
    return msgspec.json.decode(await request.read() or b"{}", type=kind)


def _json_answer(value: Any) -> web.Response:
    """Answer with `value` as JSON."""
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def _requests_of(body: wire.Generate, eos: tuple[int, ...]) -> list[GenerateRequest]:
    """Return the requests of one POST. Those that bring no id get one.

    Args:
        body: one request, or a batch
        eos: stop tokens of the model, which end every request that does not ignore them

    Raises:
        EngineError: the parts of the batch do not belong together.
    """
    inputs = _inputs(body)
    given_ids = body.rid if isinstance(body.rid, list) else [body.rid or ""] * len(inputs)
    ids = [name or secrets.token_hex(16) for name in given_ids]
    given = body.sampling_params or wire.Sampling()
    samplings = given if isinstance(given, list) else [given] * len(inputs)
    if not len(inputs) == len(ids) == len(samplings):
        counts = f"{len(inputs)} input_ids, {len(ids)} rid and {len(samplings)} sampling_params"
        raise EngineError(f"{counts} do not belong together: give one of each for every request")
    requests = []
    for name, input_ids, sampling in zip(ids, inputs, samplings, strict=True):
        requests.append(GenerateRequest(name, tuple(input_ids), sampling.params(eos)))
    return requests


def _inputs(body: wire.Generate) -> list[list[int]]:
    """Return the input of each request: `input_ids` is one input, or a list of them."""
    kinds = set(map(type, body.input_ids))
    if len(kinds) > 1:
        raise EngineError("input_ids mixes ids and lists of ids")
    inputs = body.input_ids if kinds == {list} else [body.input_ids]
    return cast(list[list[int]], inputs)


def _failed_chunk(request: GenerateRequest, index: int, num_tokens: int, error: EngineError) -> wire.Chunk:
    """Return the message for a request that failed alone after `num_tokens` tokens: SGLang calls that an abort."""
    finish = wire.Finish("abort", message=short_message(str(error)))
    meta = wire.MetaInfo(id=request.request_id, finish_reason=finish, completion_tokens=num_tokens)
    return wire.Chunk(output_ids=[], meta_info=meta, index=index)


def _finish(new: Increment, num_tokens: int) -> wire.Finish | None:
    """Return SGLang's message for why a request of `num_tokens` tokens ended; None: it goes on."""
    reason = new.finish_reason
    if reason is None:
        return None
    if reason == "length":
        return wire.Finish(reason, length=num_tokens)
    if reason == "stop":
        return wire.Finish(reason, matched=new.token_ids[-1])
    return wire.Finish(reason, message="aborted")


def _joined(old: Increment, new: Increment) -> Increment:
    """Return both increments of one request as one."""
    return Increment(
        token_ids=old.token_ids + new.token_ids,
        logprobs=old.logprobs + new.logprobs,
        policy_versions=old.policy_versions + new.policy_versions,
        finish_reason=new.finish_reason,
    )
