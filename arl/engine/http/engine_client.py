"""Drive one server over HTTP as an Engine: what a replica does to pause, swap and resume. Torch-free.

generate() ─► BatchSender ─► increments          pause() ─► update_weights() ─► resume()

kv_policy recompute: retract all, which stay open ─► flush the prefix cache ─► load ─► continue
kv_policy keep: pause in place ─► load ─► continue; the prefix cache is keyed by version
releases_memory: abort all ─► every POST has ended ─► flush ─► load ─► send the calls again. pause() releases all of the
    server's memory; a load takes that of the weights back, resume() the rest
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import KW_ONLY, dataclass
from typing import Self

from arl.clock import deadline, now
from arl.config.capabilities import KvPolicy
from arl.data.model_limits import model_limits
from arl.engine.backend import ServerSpec
from arl.engine.base import Load, refuse_impossible, refuse_unscorable
from arl.engine.http.batch_sender import BatchSender, Call
from arl.engine.http.connection import Http
from arl.engine.http.sglang_protocol import SGLangProtocol
from arl.engine.meters import PartTimer, Stopwatch
from arl.errors import DeadlineError, EngineError, EngineLost, RunError
from arl.sync.group_sender import GroupSender
from arl.sync.weight_loader import WeightLoader
from arl.types import GenerateRequest, Increment, PauseParts, ScoreRequest, SwapReport, TokenScores, WeightUpdate

ABORT_AGAIN_SECONDS = 0.05  # for a call that reached the server's line just behind the abort
FLUSH_AGAIN_SECONDS = 0.01  # SGLang's own wait, /flush_cache?timeout=, may take a second more than it needs


def connect_http(
    url: str,
    server: ServerSpec,
    key: str,
    sender: GroupSender | None,
    protocol: type[SGLangProtocol] = SGLangProtocol,
) -> "HttpEngine":
    """Return the engine of a server that a backend has started for a run; see Backend.connect.

    Args:
        protocol: that the server speaks, a class with the methods of SGLangProtocol.
    """
    recipe = server.recipe
    limits = model_limits(server.versions.served)
    return HttpEngine(
        url,
        generate_seconds=recipe.deadlines.generate,
        swap_seconds=recipe.deadlines.swap,
        kv_policy=recipe.engine.kv_policy,
        releases_memory=server.resources.takes_turns,
        key=key,
        certificate=server.certificate,
        vocab_size=limits.vocab_size,
        context=limits.context,
        sender=sender,
        protocol=protocol,
        workers=recipe.engine.tensor_parallel,
        first_rank=server.replica * recipe.engine.tensor_parallel,
    )


@dataclass(eq=False, repr=False)  # whose repr would show the key
class HttpEngine:
    """Drive one server as an Engine; `async with HttpEngine(url, …) as engine: …`.

    Args:
        url: like http://127.0.0.1:30000
        generate_seconds: longest silence of open requests while not paused
        swap_seconds: longest wait for one command (pause, update, continue)
        key: sent as a bearer token
        vocab_size, context: of the model
        certificate: file of the only one that a server with TLS may show
        kv_policy: at a swap, rebuild the cache of open requests under the new weights, or keep it
        releases_memory: from pause() to resume(), for the trainer that uses the device meanwhile; only with recompute
        sender: of weights that are broadcast, shared by the engines of a run
        protocol: see connect_http
        workers: processes of the server that hold a part of the weights
        first_rank: the trainer's rank on the device of the first worker; the others follow
    """

    url: str
    _: KW_ONLY
    generate_seconds: float
    swap_seconds: float
    key: str
    vocab_size: int
    context: int
    certificate: str | None = None
    kv_policy: KvPolicy = "recompute"
    releases_memory: bool = False
    sender: GroupSender | None = None
    protocol: type[SGLangProtocol] = SGLangProtocol
    workers: int = 1
    first_rank: int = 0

    def __post_init__(self) -> None:
        self.url = self.url.rstrip("/")
        self._calls: dict[str, Call] = {}
        self._closed = False
        self._lock = asyncio.Lock()  # one of pause, resume and update at a time
        self._paused_since: float | None = None
        self._busy = Stopwatch()
        self._timer = PartTimer()  # of the last pause
        self._recomputed_tokens = 0  # of open calls, whose cache pauses have dropped since the last report

    async def __aenter__(self) -> Self:
        self._http = Http(self.url, self.key, self.swap_seconds, self.certificate)
        try:
            self._protocol = self.protocol(self._http)
            model, version = await self._protocol.introduce()
        except BaseException:
            await self._http.close()
            raise
        self._batches = BatchSender(
            self._protocol, self.generate_seconds, self.kv_policy == "keep", self.releases_memory, version
        )
        self._loader = WeightLoader(self._protocol, self.sender, self.workers, self.first_rank)
        self._loader.loaded = WeightUpdate(version, model.model_path)
        return self

    async def __aexit__(self, *_: object) -> None:
        """End every task and fail every open call."""
        self._closed = True
        try:
            await self._batches.close()
            for call in self._calls.values():
                call.fail(self.url, EngineLost("the client was closed"))
            await self._loader.close()
        finally:
            await self._http.close()

    @property
    def loaded_version(self) -> int:
        return self._batches.version

    @property
    def busy_seconds(self) -> float:
        return self._busy.seconds

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
        """See Engine.generate.

        Raises:
            EngineError: refused, or the answer is garbled; names the server and the request.
            EngineLost: the connection broke, or the client was closed.
            DeadlineError: the server sent nothing for generate_seconds.
        """
        refuse_impossible(request, self.vocab_size, self.context)
        if self._closed:
            raise EngineLost(f"{self.url}: request {request.request_id} came after the client was closed")
        if request.request_id in self._calls:
            raise EngineError(f"request {request.request_id}: this id is open already: ids must be unique")
        call = self._batches.open(request)
        self._calls[request.request_id] = call
        self._count_busy()
        finished = False
        try:
            while not finished:
                event = await call.events.get()  # who holds the call has a deadline and puts an event
                finished = isinstance(event, RunError) or event.finish_reason is not None
                if isinstance(event, RunError):
                    raise event
                yield event
        finally:
            del self._calls[request.request_id]
            self._count_busy()
            if not finished:
                self._batches.abandon(call)

    async def score(self, request: ScoreRequest) -> TokenScores:
        """See ScoringEngine.score."""
        refuse_unscorable(request, self.vocab_size, self.context)
        return await self._protocol.score(request, self.generate_seconds)

    async def pause(self) -> None:
        """See Engine.pause."""
        async with self._lock:
            if self._paused_since is None:
                await self._pause()
                if self.releases_memory:
                    await self._loader.release_memory()

    async def resume(self) -> None:
        """See Engine.resume."""
        async with self._lock:
            await self._resume()

    async def update_weights(self, update: WeightUpdate) -> SwapReport:
        """See Engine.update_weights.

        Raises:
            EngineError: the weights are older, or the server refused them and goes on with the old ones, unless it
                has loaded a part of them: then it stays paused. Or what it holds is not what was published.
            EngineLost, DeadlineError: it is gone, or did not receive them in time.
        """
        if update.version < self.loaded_version:
            raise EngineError(f"version {update.version} is older than the loaded version {self.loaded_version}")
        async with self._lock:
            start = now()
            self._batches.newest_version = update.version  # before the server answers that it is loaded
            pauses_itself = self._paused_since is None
            await self._loader.prepare(update)
            await self._pause()
            since = self._paused_since or start
            try:
                with self._timer.part("transfer" if update.transport == "broadcast" else "load"):
                    await self._loader.load(update)
                self._batches.version = update.version
            except (EngineLost, DeadlineError):
                raise  # nobody is there to resume
            except BaseException:
                if pauses_itself and not self._loader.is_mixed:
                    await self._resume()
                raise
            if pauses_itself:
                await self._resume()
            recomputed, self._recomputed_tokens = self._recomputed_tokens, 0
            parts = PauseParts(**self._timer.seconds)
            report = SwapReport(update.version, now() - since, now() - start, recomputed, parts)
            await self._loader.check(update)
            return report

    async def report(self) -> Load:
        """See ReplicaEngine.report."""
        return await self._protocol.load()

    def _count_busy(self) -> None:
        self._busy.run(len(self._calls) > 0 and self._paused_since is None)

    async def _pause(self) -> None:
        """Have the server stop generating: with its open requests in place, back in line, or handed back to us."""
        if self._paused_since is not None:
            return
        self._paused_since = now()
        self._timer = PartTimer()
        self._count_busy()
        self._batches.pause()
        async with deadline(self.swap_seconds, "engine client", f"{self.url} to stop and to drop its cache"):
            with self._timer.part("drain"):
                if self.releases_memory:  # which SGLang survives only when it knows of no request
                    await self._abort_all()
                else:
                    await self._protocol.pause("in_place" if self.kv_policy == "keep" else "retract")
            if self.kv_policy == "keep":
                return
            # Prefixes of the old weights go as soon as nothing runs. This is also a barrier: an abort that is still on
            # its way would end what is sent next.
            with self._timer.part("flush"):
                is_flushed = await self._protocol.flush_cache()
                while not is_flushed:
                    await asyncio.sleep(FLUSH_AGAIN_SECONDS)
                    is_flushed = await self._protocol.flush_cache()
        for call in self._calls.values():
            self._recomputed_tokens += call.drop_cache()

    async def _abort_all(self) -> None:
        idle = self._batches.idle
        while not idle.is_set():
            await self._protocol.abort_all()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ABORT_AGAIN_SECONDS):
                    await idle.wait()

    async def _resume(self) -> None:
        if self._paused_since is None:
            return
        with self._timer.part("resume"):
            await self._loader.resume_memory()
            if not self.releases_memory:
                await self._protocol.continue_generation()
        self._paused_since = None
        self._count_busy()
        self._batches.resume()
