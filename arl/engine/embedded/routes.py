"""Answer the requests of SGLang's HTTP protocol with an embedded engine.

    POST /generate ─► EmbeddedEngine.submit ─► its Stream ─► server-sent events, one for each increment
    POST /pause_generation, /continue_generation, /abort_request, /flush_cache
    POST /release_memory_occupation, /resume_memory_occupation
    POST /update_weights_from_disk           read them in a thread ─► copy them between two passes
    POST /init_weights_update_group          join in a thread
    POST /update_weights_from_distributed    receive in a thread ─► copy between two passes
    POST /destroy_weights_update_group, /weights_checker
    GET  /health, /model_info, /v1/loads

Requests are answered between two passes of the engine's loop. Whatever may block is done in a thread, while the engine
generates: files on slow disks, hosts that do not answer. Weights take effect all at once. Bad input gets a 4xx.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.web import Request, Response, StreamResponse

from arl.clock import in_thread
from arl.engine.embedded.batching import EmbeddedEngine
from arl.engine.http import wire
from arl.errors import EngineError, short_message
from arl.sync.buckets import TensorSpec
from arl.sync.loading import read_weights, refuse_foreign_tensors
from arl.sync.process_group import Receiver
from arl.types import GenerateRequest, Increment, ScoreRequest, WeightUpdate


class EngineRoutes:
    """Handle SGLang's HTTP requests with one EmbeddedEngine.

    Args:
        engine: runs already, or will; it pauses in place
        model_path: directory of the weights that the engine began with
        broadcast_seconds: after which a broadcast that does not move is given up, and a group that cannot be joined
    """

    def __init__(self, engine: EmbeddedEngine, model_path: str, broadcast_seconds: float) -> None:
        self._engine = engine
        self._model_path = model_path
        self._receiver = Receiver(broadcast_seconds)
        # One at a time reads, hashes or replaces the weights: what is read has the size of a model in memory, and the
        # hash of weights that change meanwhile is that of no version.
        self._turn = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        """Return what answers each path. Handlers raise an EngineError or a DecodeError for bad input."""
        return [
            web.post("/generate", self._generate),
            _post("/pause_generation", wire.Pause, self._pause),
            _post("/continue_generation", dict, lambda _: self._engine.resume()),
            _post("/abort_request", wire.Abort, self._abort),
            _post("/flush_cache", dict, self._flush),
            _post("/release_memory_occupation", dict, self._release),
            _post("/resume_memory_occupation", dict, self._succeed),  # the next pass takes what it needs
            _post("/update_weights_from_disk", wire.UpdateFromDisk, self._update),
            _post("/init_weights_update_group", wire.InitGroup, self._join),
            _post("/destroy_weights_update_group", wire.LeaveGroup, self._leave),
            _post("/update_weights_from_distributed", wire.UpdateFromDistributed, self._receive),
            _post("/weights_checker", dict, self._check_weights),
            web.get("/health", self._succeed),
            web.get("/model_info", self._model_info),
            web.get("/v1/loads", self._loads),
        ]

    async def _generate(self, request: Request) -> StreamResponse:
        """Answer with one event for each increment, until all requests have ended; or score what is not to stream."""
        body = await request.read()
        if b'"logprob_start_len"' in body:
            return await self._score(msgspec.json.decode(body, type=wire.Score))
        requests = _requests_of(msgspec.json.decode(body, type=wire.Generate))
        stream = self._engine.submit(requests)
        response = StreamResponse(headers={"Content-Type": "text/event-stream"})
        counts = [0] * len(requests)  # tokens of each request
        num_open = len(requests)
        try:
            await response.prepare(request)
            while num_open:
                events = []
                for index, new in await stream.take():
                    if isinstance(new, EngineError):  # it failed alone: SGLang calls that an abort
                        finish = wire.Finish("abort", message=short_message(str(new)))
                        chunk = wire.Chunk([], wire.MetaInfo(counts[index], finish), index)
                    else:
                        counts[index] += len(new.token_ids)
                        chunk = self._chunk(index, new, counts[index])
                    num_open -= chunk.meta_info.finish_reason is not None
                    events.append(_event(msgspec.json.encode(chunk)))
                await response.write(b"".join(events))
        finally:  # if the caller has gone, nobody reads what is still open
            self._engine.leave(stream)
        await response.write(_event(wire.DONE))
        return response

    async def _score(self, body: wire.Score) -> Response:
        params = body.sampling_params.params
        start = body.logprob_start_len + 1
        request = ScoreRequest(body.rid, body.input_ids, start, params.temperature, body.top_logprobs_num)
        scores = await self._engine.score(request)
        logprobs = _triples(scores.logprobs[start:].tolist(), body.input_ids[start:])
        top: list[list[wire.Triple] | None] = [None]
        for of_place, ids in zip(scores.top_logprobs[start:].tolist(), scores.top_ids[start:].tolist(), strict=True):
            top.append(_triples(of_place, ids))
        first: wire.Triple = (None, body.input_ids[start - 1], None)
        return _json_answer(wire.ScoreAnswer(wire.InputInfo([first, *logprobs], top)))

    def _chunk(self, index: int, new: Increment, num_tokens: int) -> wire.Chunk:
        """Return the message for increment `new` of a request that has `num_tokens` tokens with it."""
        pairs = zip(new.logprobs, new.token_ids, strict=True)
        meta = wire.MetaInfo(
            completion_tokens=num_tokens,
            finish_reason=None if new.finish_reason is None else wire.Finish(new.finish_reason),
            weight_versions=wire.spans(new.policy_versions),
            output_token_logprobs=[(logprob, token, None) for logprob, token in pairs],
        )
        return wire.Chunk(list(new.token_ids), meta, index)

    async def _pause(self, body: wire.Pause) -> None:
        await self._engine.pause()
        if body.mode == "retract":
            self._engine.retract()

    async def _abort(self, body: wire.Abort) -> None:
        self._engine.abort(None if body.abort_all else body.rid)

    async def _flush(self, _: Any) -> None:
        """Succeed if nothing runs, because nothing else is cached; SGLang refuses as well while something does."""
        running = (await self._engine.report()).running
        if running:
            raise EngineError(f"{running} requests run: their cache cannot be dropped")

    async def _release(self, _: Any) -> None:
        """Free the cache's memory. The weights stay, because new ones are copied into them."""
        if self._engine.num_open:
            raise EngineError(f"{self._engine.num_open} requests are open: their cache cannot be dropped")
        self._engine.release_cache()

    async def _succeed(self, _: Any) -> Response:
        return Response()

    async def _update(self, body: wire.UpdateFromDisk) -> None:
        async with self._turn:
            state = await in_thread(read_weights, body.model_path, self._engine.model)
            await self._engine.load(WeightUpdate(int(body.weight_version), body.model_path, state=state))

    async def _join(self, body: wire.InitGroup) -> None:
        await in_thread(self._receiver.join, *msgspec.structs.astuple(body))

    async def _leave(self, body: wire.LeaveGroup) -> None:
        await in_thread(self._receiver.leave, body.group_name)

    async def _receive(self, body: wire.UpdateFromDistributed) -> None:
        columns = zip(body.names, body.dtypes, body.shapes, strict=True)
        specs = [TensorSpec(name, dtype, shape) for name, dtype, shape in columns]
        shapes = {spec.name: spec.shape for spec in specs}
        refuse_foreign_tensors(self._engine.model, shapes, "what is to be broadcast")
        rest = iter(specs)
        buckets = [list(itertools.islice(rest, count)) for count in body.bucket_lengths()]
        state = await in_thread(self._receiver.receive, body.group_name, buckets)
        async with self._turn:
            await self._engine.load(WeightUpdate(int(body.weight_version), state=state))

    async def _check_weights(self, _: Any) -> Response:
        async with self._turn:
            found = await in_thread(self._engine.checksums)
        return _json_answer(wire.Checked([wire.Checksums(found)]))

    async def _loads(self, _: Request) -> Response:
        load = await self._engine.report()
        return _json_answer(wire.Loads([wire.RankLoad(*msgspec.structs.astuple(load))]))

    async def _model_info(self, _: Request) -> Response:
        return _json_answer(wire.ModelInfo(self._model_path, str(self._engine.loaded_version)))


def _post(path: str, kind: type[Any], work: Callable[[Any], Awaitable[Response | None]]) -> web.RouteDef:
    """Answer POSTs of `path`, whose body is a message of `kind`, with what `work` returns of it, or with nothing."""

    async def handler(request: Request) -> Response:
        body = msgspec.json.decode(await request.read() or b"{}", type=kind)
        answer = await work(body)
        return Response() if answer is None else answer

    return web.post(path, handler)


def _triples(logprobs: Sequence[float], ids: Sequence[int]) -> list[wire.Triple]:
    return [(logprob, token, None) for logprob, token in zip(logprobs, ids, strict=True)]


def _json_answer(value: Any) -> Response:
    return Response(body=msgspec.json.encode(value), content_type="application/json")


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def _requests_of(body: wire.Generate) -> list[GenerateRequest]:
    """Return the requests of one POST.

    Raises:
        EngineError: the parts of the batch do not belong together, or it asks for what is not served.
    """
    if not (body.stream and body.return_logprob):
        raise EngineError("answers are streams with logprobs: give stream and return_logprob as true")
    if not len(body.input_ids) == len(body.rid) == len(body.sampling_params):
        raise EngineError("give one of input_ids, rid and sampling_params for every request")
    parts = zip(body.rid, body.input_ids, body.sampling_params, strict=True)
    return [GenerateRequest(name, input_ids, sampling.params) for name, input_ids, sampling in parts]
