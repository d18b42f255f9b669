"""Serve many engines without a model from one process: `python -m arl.bench.null_server --engines 32`. Torch-free.

    socket 1 ─► NullReplica ─┐
    socket 2 ─► NullReplica ─┼─► each POST /generate ─► NullAnswer: one event for `interval` tokens of each request
    …                        ┘
    standard input closes ─► the process ends, so nothing is left behind if its parent dies

Each replica speaks the part of SGLang's protocol that arl.engine.http uses, with one HTTP chunk for each event, as
SGLang sends them. Only its tokens mean nothing: a request samples `rate` tokens a second, and its length follows from
its seed. Time stands still while a replica is paused.
"""

import argparse
import asyncio
import json
import random
import sys
from time import process_time
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from arl.bench.null_answer import NUM_SAMPLED, LengthModel, NullAnswer, Totals
from arl.engine.http import wire
from arl.launch.address import free_listener, listening_address
from arl.run.gc_pacing import rare_collections
from arl.sync.weight_messages import UpdateFromDisk

Body = TypeVar("Body")
VOCABULARY = 151_936
CONTEXT = 1 << 20
BACKLOG = 1024  # connections that may wait on one socket


class NullReplica:
    """Answer SGLang's HTTP requests on one socket."""

    def __init__(self, model: LengthModel, totals: Totals, sampled: list[tuple[float, int, Any]]) -> None:
        self.model = model
        self.totals = totals
        self.sampled = sampled
        self.version = 0
        self.is_paused = False
        self._paused_at = 0.0
        self._paused_seconds = 0.0
        self._answers: set[NullAnswer] = set()

    def app(self) -> web.Application:
        """Return the application with every route."""
        app = web.Application(client_max_size=1 << 30)
        app.add_routes(
            [
                web.post("/generate", self._generate),
                web.post("/pause_generation", self._pause),
                web.post("/continue_generation", self._continue),
                web.post("/abort_request", self._abort),
                web.post("/flush_cache", self._flush),
                web.post("/update_weights_from_disk", self._update),
                web.get("/health", self._flush),
                web.get("/model_info", self._model_info),
                web.get("/server_info", self._server_info),
                web.get("/v1/loads", self._loads),
            ]
        )
        return app

    def now(self) -> float:
        """Return the seconds on this replica's clock, which stands still while it is paused."""
        wall = self._paused_at if self.is_paused else asyncio.get_running_loop().time()
        return wall - self._paused_seconds

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        answer = NullAnswer(self, await _read(request, wire.Generate))
        self.totals.open += len(answer.requests)
        self._answers.add(answer)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        try:
            await response.prepare(request)
            await answer.stream(response)
            await response.write(b"data: " + wire.DONE + b"\n\n")
        except ConnectionResetError:
            return response  # the caller has gone
        finally:
            self._answers.remove(answer)
            self.totals.end(len(answer.requests))
        return response

    async def _pause(self, request: web.Request) -> web.Response:
        if not self.is_paused:
            self._paused_at = asyncio.get_running_loop().time()
            self.is_paused = True
        return _json({"status": "ok"})

    async def _continue(self, request: web.Request) -> web.Response:
        if self.is_paused:
            self._paused_seconds += asyncio.get_running_loop().time() - self._paused_at
            self.is_paused = False
            for answer in self._answers:
                answer.wake()
        return _json({"status": "ok"})

    async def _abort(self, request: web.Request) -> web.Response:
        body = await _read(request, wire.Abort)
        for answer in self._answers:
            answer.abort("" if body.abort_all else body.rid)
        return web.Response()

    async def _flush(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _update(self, request: web.Request) -> web.Response:
        body = await _read(request, UpdateFromDisk)
        if body.weight_version is not None:
            self.version = int(body.weight_version)
        return _json({"success": True, "message": f"serving version {self.version}"})

    async def _model_info(self, request: web.Request) -> web.Response:
        return _json(wire.ModelInfo("null", str(self.version), VOCABULARY, CONTEXT))

    async def _server_info(self, request: web.Request) -> web.Response:
        """Answer the totals of the whole process."""
        self.totals.cpu_seconds = process_time()
        return _json(self.totals)

    async def _loads(self, request: web.Request) -> web.Response:
        num_open = sum(len(answer.requests) for answer in self._answers)
        own = wire.RankLoad(
            num_running_reqs=num_open,
            num_waiting_reqs=0,
            max_running_requests=1024,
            num_total_tokens=num_open * self.model.longest,
            max_total_num_tokens=1024 * self.model.longest,
        )
        return _json(wire.Loads([own]))


async def _read(request: web.Request, kind: type[Body]) -> Body:
    return msgspec.json.decode(await request.read() or b"{}", type=kind)


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def main(arguments: list[str] | None = None) -> None:
    """Serve until standard input closes."""
    parser = argparse.ArgumentParser("arl.bench.null_server", description=__doc__.splitlines()[0])
    parser.add_argument("--engines", type=int, default=1, help="replicas, each with a socket of its own")
    parser.add_argument("--rate", type=float, default=50.0, help="tokens a second of one request")
    parser.add_argument("--interval", type=int, default=16, help="tokens between two increments")
    parser.add_argument("--longest", type=int, default=1024, help="tokens of the longest request")
    options = parser.parse_args(arguments)
    model = LengthModel(options.rate, options.interval, options.longest)
    totals = Totals()
    sampled = _sampled(options.interval)
    replicas = [NullReplica(model, totals, sampled) for _ in range(options.engines)]
    with rare_collections():
        asyncio.run(_serve(replicas))


def _sampled(interval: int) -> list[tuple[float, int, Any]]:
    """Draw tokens once, as many as one increment needs beyond NUM_SAMPLED."""
    draw = random.Random(0)
    tokens = [(-draw.expovariate(1.0), draw.randrange(VOCABULARY), None) for _ in range(NUM_SAMPLED)]
    return tokens + tokens[:interval]


async def _serve(replicas: list[NullReplica]) -> None:
    loop = asyncio.get_running_loop()
    closed = asyncio.Event()
    loop.add_reader(sys.stdin, closed.set)
    runners = []
    urls = []
    try:
        for replica in replicas:
            runner = web.AppRunner(replica.app(), handler_cancellation=True, shutdown_timeout=1.0, access_log=None)
            await runner.setup()
            runners.append(runner)
            listener = free_listener(listening_address())
            listener.listen(BACKLOG)
            host, port = listener.getsockname()[:2]
            await web.SockSite(runner, listener).start()
            urls.append(f"http://{host}:{port}")
        print(json.dumps(urls), flush=True)
        await closed.wait()
    finally:
        for runner in runners:
            await runner.cleanup()


if __name__ == "__main__":
    main()
