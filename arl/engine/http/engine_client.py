"""An Engine over HTTP: one SGLang server, or our own, which speaks its protocol. Torch-free.

    generate() ─► pending ─► one POST for all calls of a loop iteration ─► increments ─► each caller
                     ▲                                                          │
                     └── aborted by a pause: input + what was said, the rest of the budget

Pending calls are not sent while paused, so a pause and a swap are invisible to callers but for the versions.

    kv_policy recompute: abort all ─► every POST has ended ─► flush the prefix cache ─► load ─► send the calls again
    kv_policy keep: pause in place ─► load ─► continue; the prefix cache is keyed by version
    gives_up_memory: between pause() and resume() the server has none but for the weights while they are loaded
"""

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import AsyncIterator, Coroutine
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from arl.clock import deadline, now
from arl.engine.base import Load
from arl.engine.busy_meter import BusyMeter
from arl.engine.http import wire
from arl.engine.http.calls import Call, decode
from arl.engine.http.connection import Http
from arl.engine.requests import refuse_impossible, rest_of
from arl.errors import DeadlineError, EngineError, EngineLost, RunError
from arl.sync.weight_loader import WeightLoader
from arl.sync.weight_sender import WeightSender
from arl.types import GenerateRequest, Increment, SwapReport, WeightUpdate

ABORT_AGAIN_SECONDS = 0.05  # for a call that reached the server's line just behind the abort
FLUSH_AGAIN_SECONDS = 0.01  # SGLang's own wait, /flush_cache?timeout=, may take a second more than it needs


class SGLangEngine:
    """One server as an Engine; `async with SGLangEngine(url, …) as engine: …`.

    Args:
        url: like http://127.0.0.1:30000
        generate_seconds: longest silence of open requests while not paused
        swap_seconds: longest wait for one command (pause, update, continue)
        kv_policy: at a swap, rebuild the cache of open requests under the new weights, or keep it
        gives_up_memory: from pause() to resume(), for whoever has the device meanwhile; only with kv_policy recompute
        key: sent as a bearer token
        vocab_size, context: of the model; None asks the server, which SGLang does not answer
        sender: of weights that are broadcast
        workers: processes of the server that hold a part of the weights
    """

    def __init__(
        self,
        url: str,
        *,
        generate_seconds: float,
        swap_seconds: float,
        kv_policy: Literal["recompute", "keep"] = "recompute",
        gives_up_memory: bool = False,
        key: str | None = None,
        vocab_size: int | None = None,
        context: int | None = None,
        sender: WeightSender | None = None,
        workers: int = 1,
    ) -> None:
        self._sender, self._workers = sender, workers
        self.url, self._key = url.rstrip("/"), key
        self._silence, self._swap, self._kv_policy = generate_seconds, swap_seconds, kv_policy
        self._vocab_size, self._context = vocab_size or 0, context or 0
        assert kv_policy == "recompute" or not gives_up_memory, "a cache that is kept cannot be given up"
        self._gives_up_memory = gives_up_memory
        self._version = 0
        self._calls: dict[str, Call] = {}
        self._pending: list[Call] = []
        self._flushing = False
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._silences: list[asyncio.Timeout] = []  # one for each POST in flight
        self._idle = asyncio.Event()  # no POST is in flight
        self._idle.set()
        self._last_heard = now()
        self._lock = asyncio.Lock()  # one of pause, resume and update at a time
        self._name, self._serials = secrets.token_hex(4), itertools.count()
        self._pauses = 0
        self._paused_since: float | None = None
        self._meter = BusyMeter()

    async def __aenter__(self) -> Self:
        self._http = Http(self.url, self._key, self._swap)
        self._loader = WeightLoader(self._http, self._sender, self._workers, self._swap)
        try:
            await self._introduce()
        except BaseException:
            await self._http.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End every task and fail every open call.

        Raises:
            RunError: an abort could not be delivered to a live server.
        """
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for call in self._calls.values():
            call.fail(self.url, "the client was closed", EngineLost)
        await self._loader.close()
        await self._http.close()
        if self._failure is not None:
            raise self._failure

    @property
    def loaded_version(self) -> int:
        return self._version

    @property
    def busy_seconds(self) -> float:
        return self._meter.seconds

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
        """See Engine.generate.

        Raises:
            EngineError: refused, or the answer is garbled; names the server and the request.
            EngineLost: the connection broke, or the client was closed.
            DeadlineError: the server said nothing for generate_seconds.
        """
        refuse_impossible(request, self._vocab_size, self._context)
        if self._closed:
            raise EngineLost(f"{self.url}: request {request.request_id} came after the client was closed")
        if request.request_id in self._calls:
            raise EngineError(f"request {request.request_id}: this id is open already: ids must be unique")
        call = self._calls[request.request_id] = Call(request, next(self._serials))
        self._meter.opened(1)
        self._enqueue(call)
        finished = False
        try:
            while not finished:
                await call.arrived.wait()  # whoever holds the call has a deadline and puts an event
                call.arrived.clear()
                while call.events:
                    event = call.events.popleft()
                    finished = isinstance(event, RunError) or event.finish_reason is not None
                    if isinstance(event, RunError):
                        raise event
                    yield event
        finally:
            call.closed = True
            del self._calls[request.request_id]
            self._meter.opened(-1)
            if not finished:
                self._abandon(call)

    async def pause(self) -> None:
        """See Engine.pause."""
        async with self._lock:
            if self._paused_since is None:
                await self._pause()
                if self._gives_up_memory:
                    await self._loader.give_up_memory()

    async def resume(self) -> None:
        """See Engine.resume."""
        async with self._lock:
            await self._resume()

    async def update_weights(self, update: WeightUpdate) -> SwapReport:
        """See Engine.update_weights.

        Raises:
            EngineError: the weights are older, or the server refused them and goes on with the old ones; or what it
                holds is not what was published.
            EngineLost, DeadlineError: it is gone, or did not receive them in time.
        """
        if update.version < self._version:
            raise EngineError(f"version {update.version} is older than the loaded version {self._version}")
        async with self._lock:
            start, ours = now(), self._paused_since is None
            await self._loader.prepare(update)
            await self._pause()
            since = self._paused_since or start
            try:
                await self._loader.load(update)
                self._version = update.version
            except (EngineLost, DeadlineError):
                raise  # nobody is there to resume
            except BaseException:
                if ours:
                    await self._resume()
                raise
            if ours:
                await self._resume()
            report = SwapReport(update.version, now() - since, now() - start)
            await self._loader.check(update)
            return report

    async def report(self) -> Load:
        """See ReplicaEngine.report. An SGLang that has no such route counts as idle: then its open requests decide."""
        status, body = await self._http.ask("/v1/loads?include=core")
        try:
            return msgspec.json.decode(b'{"loads": []}' if status == 404 else body, type=wire.Loads).total
        except msgspec.DecodeError as error:
            raise EngineError(f"{self.url}/v1/loads answered {status}: {error}: {body[:200]!r}") from error

    async def _introduce(self) -> None:
        body = await self._http.command("/model_info")
        try:
            info = msgspec.json.decode(body, type=wire.ModelInfo)
            self._version = int(info.weight_version)
            self._loader.loaded = WeightUpdate(self._version, info.model_path)
        except (msgspec.DecodeError, ValueError) as error:
            remedy = "start SGLang with --weight-version 0"
            raise EngineError(f"{self.url}/model_info: {error}; {remedy}: {body[:200]!r}") from error
        self._loader.stages = info.stages_weights
        self._vocab_size = self._vocab_size or info.vocab_size or 0
        self._context = self._context or info.context_length or 0
        if not self._vocab_size or not self._context:
            raise EngineError(f"{self.url} does not tell its vocabulary and context: give vocab_size and context")

    def _enqueue(self, call: Call) -> None:
        self._pending.append(call)
        self._flush_soon()

    def _flush_soon(self) -> None:
        """Send what is pending once all who are ready to run now have added to it."""
        if self._pending and not self._flushing and self._paused_since is None:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._pending and self._paused_since is None and not self._closed:
            # The server serves in order of arrival, and a pause hands back those that wait before those that run.
            calls, self._pending = sorted(self._pending, key=lambda call: call.serial), []
            self._spawn(self._post(calls, self._pauses))  # a pause may come before the task runs

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._reap)

    def _reap(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = self._failure or task.exception()

    def _abandon(self, call: Call) -> None:
        """The caller has gone: take the call back, or tell the server once it knows of it."""
        if call in self._pending:
            self._pending.remove(call)
        elif not self._closed:
            self._spawn(self._abort(call))

    async def _abort(self, call: Call) -> None:
        await call.sent.wait()  # set by _post, whose deadline bounds it
        if not call.rid:
            return  # it was never sent; an empty id would abort every request
        with contextlib.suppress(EngineLost):  # a dead server has nothing left to abort
            await self._http.command("/abort_request", wire.Abort(call.rid))

    async def _post(self, calls: list[Call], pauses: int) -> None:
        """Consumes the stream of one batch, sent after `pauses` pauses.

        Waits for the server's next event, bounded by the silence deadline.
        """
        if pauses != self._pauses:  # nothing may reach a server that is being emptied
            for call in calls:
                if call.closed:
                    call.sent.set()
                else:
                    self._enqueue(call)
            return
        left = dict(enumerate(calls))
        what = f"{self.url}/generate, request {calls[0].request.request_id} and {len(calls) - 1} more"
        try:
            async with deadline(self._silence, "engine client", what) as silence:
                self._silences.append(silence)
                self._idle.clear()
                try:
                    await self._converse(calls, left, silence, pauses)
                finally:
                    self._silences.remove(silence)
                    if not self._silences:
                        self._idle.set()
            if left:
                raise EngineError("the answer ended early")
        except DeadlineError as error:
            for call in left.values():
                call.put(error)
        except Exception as error:  # whatever it was, every caller that waits must hear of it
            reason = str(error) if isinstance(error, EngineError) else repr(error)
            for call in left.values():
                call.fail(self.url, reason, EngineLost if isinstance(error, EngineLost) else EngineError)
        finally:
            for call in left.values():
                call.sent.set()

    async def _converse(self, calls: list[Call], left: dict[int, Call], silence: asyncio.Timeout, pauses: int) -> None:
        self._extend(silence)
        version = self._version
        for call in calls:  # an abort ends every rid that begins with its own: none may be the beginning of another
            call.rid = f"{call.request.request_id}#{self._name}.{next(self._serials)};"
        rests = [rest_of(call.request, call.said) for call in calls]
        body = wire.Generate(
            input_ids=[list(rest.input_ids) for rest in rests],
            rid=[call.rid for call in calls],
            sampling_params=[wire.sampling_of(rest.sampling) for rest in rests],
            stream=True,
            return_logprob=True,
            extra_key=[str(version)] * len(calls) if self._kv_policy == "keep" else None,
        )
        async with self._http.stream("/generate", body) as events:
            for call in calls:
                call.sent.set()
            async for data in events:
                self._heard()
                if data == wire.DONE:
                    return
                chunk = decode(data)
                call = left[chunk.index]
                cut = call.hear(chunk, paused=pauses != self._pauses, swapped=version != self._version)
                if chunk.meta_info.finish_reason is not None:
                    del left[chunk.index]
                if cut:
                    self._enqueue(call)

    def _heard(self) -> None:
        """A server that says anything is alive, and those who stand in its line may wait on."""
        if now() - self._last_heard > self._silence / 10:  # seldom, since lines are long and events many
            self._last_heard = now()
            for silence in self._silences:
                self._extend(silence)

    def _extend(self, silence: asyncio.Timeout) -> None:
        silence.reschedule(None if self._paused_since is not None else now() + self._silence)

    async def _pause(self) -> None:
        if self._paused_since is not None:
            return
        self._pauses += 1
        self._paused_since = now()
        self._meter.pause(True)
        for silence in self._silences:
            self._extend(silence)
        await self._stop()

    async def _stop(self) -> None:
        if self._kv_policy == "keep":
            await self._http.command("/pause_generation", wire.Pause("in_place"))
            return
        # SGLang's own pause in mode abort does the same, and then sleeps for a second.
        async with deadline(self._swap, "engine client", f"{self.url} to hand back its open requests"):
            while not self._idle.is_set():
                await self._http.command("/abort_request", wire.Abort(abort_all=True))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(ABORT_AGAIN_SECONDS):
                        await self._idle.wait()
        await self._flush_cache()  # also a barrier: an abort that is still on its way would end what is sent next

    async def _resume(self) -> None:
        if self._paused_since is None:
            return
        await self._loader.take_memory_again()
        if self._kv_policy == "keep":
            await self._http.command("/continue_generation", {})
        self._paused_since = None
        self._meter.pause(False)
        for silence in self._silences:
            self._extend(silence)
        self._flush_soon()

    async def _flush_cache(self) -> None:
        """Forget prefixes of the old weights; SGLang refuses while its scheduler is busy."""
        async with deadline(self._swap, "engine client", f"{self.url}/flush_cache to succeed"):
            while (answer := await self._http.ask("/flush_cache", {}))[0] == 400:  # noqa: ASYNC110 - another's state
                await asyncio.sleep(FLUSH_AGAIN_SECONDS)
        status, said = answer
        if status != 200:
            raise EngineError(f"{self.url}/flush_cache answered {status}: {said[:500].decode(errors='replace')}")
