"""Send the open calls of one server in batches, and read the streams that answer them. Torch-free.

open() ─► pending ─► one POST for all calls of an event-loop iteration ─► increments ─► each call
             ▲                                                                │
             └── cut short by a pause: input + what was sampled, the rest of the budget

Pending calls are not sent while paused, so callers see of a pause only a silence.
"""

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from arl.clock import deadline, now
from arl.engine.continuation import Continuation
from arl.engine.http import wire
from arl.engine.http.calls import Call, Known, decode
from arl.engine.http.connection import Http
from arl.errors import DeadlineError, EngineError, EngineLost
from arl.types import GenerateRequest


class BatchSender:
    """Send and read the calls of one server.

    Args:
        http: the server
        silence_seconds: longest silence of a server that has open calls, while not paused
        keys_cache: name the version with each call, so that the server's prefix cache, which a swap keeps, never
            serves a prefix of other weights
    """

    def __init__(self, http: Http, silence_seconds: float, keys_cache: bool) -> None:
        self._http = http
        self._silence_seconds = silence_seconds
        self._keys_cache = keys_cache
        self.version = 0  # that the server has loaded
        self.known = Known()
        self.idle = asyncio.Event()  # no POST is in flight
        self.idle.set()
        self.recomputed_tokens = 0  # by the server, because pauses have cut calls short
        self._pending: list[Call] = []
        self._is_scheduled = False  # _send_pending
        self._is_paused = False
        self._is_closed = False
        self._num_pauses = 0
        self._silences: list[asyncio.Timeout] = []  # one for each POST in flight
        self._last_heard = now()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None  # the first of a task
        self._name = secrets.token_hex(4)
        self._serials = itertools.count()

    def open(self, request: GenerateRequest) -> Call:
        """Open a call, which is sent with the others of this event-loop iteration."""
        call = Call(Continuation(request), next(self._serials), self.known)
        self._enqueue(call)
        return call

    def abandon(self, call: Call) -> None:
        """Take back a call whose caller has gone, or abort it once the server knows of it."""
        if call in self._pending:
            self._pending.remove(call)
        elif not self._is_closed:
            self._spawn(self._abort(call))

    def pause(self) -> None:
        """Send nothing more; what is in flight may be silent for as long as it likes."""
        self._num_pauses += 1
        self._is_paused = True
        self._extend_all()

    def resume(self) -> None:
        """Send again, first what the pause handed back."""
        self._is_paused = False
        self._extend_all()
        self._schedule()

    def take_recomputed(self) -> int:
        """Return the tokens that the server computes again because of pauses since the last call."""
        recomputed = self.recomputed_tokens
        self.recomputed_tokens = 0
        return recomputed

    async def close(self) -> None:
        """Cancel what is in flight."""
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def raise_failure(self) -> None:
        """Raise what a task of this sender has raised: an abort that could not be delivered to a live server."""
        if self._failure is not None:
            raise self._failure

    def _enqueue(self, call: Call) -> None:
        """Have the call sent, for the first time or for what is left of it."""
        self._pending.append(call)
        self._schedule()

    def _schedule(self) -> None:
        """Send what is pending once all tasks that are ready to run now have added to it."""
        if self._pending and not self._is_scheduled and not self._is_paused:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._send_pending)

    def _send_pending(self) -> None:
        self._is_scheduled = False
        if self._pending and not self._is_paused and not self._is_closed:
            # The server serves in order of arrival, and a pause hands back waiting calls before running ones.
            calls = sorted(self._pending, key=lambda call: call.serial)
            self._pending = []
            for batch in _batches(calls):
                self._spawn(self._post(batch, self._num_pauses))  # a pause may come before the task runs

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._reap)

    def _reap(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = self._failure or task.exception()

    async def _abort(self, call: Call) -> None:
        """Have the server end a call once it knows of it."""
        await call.sent.wait()  # set by _post, whose deadline bounds it
        if not call.rid:
            return  # it was never sent; an empty id would abort every request
        with contextlib.suppress(EngineLost):  # a dead server has nothing left to abort
            await self._http.command("/abort_request", wire.Abort(call.rid))

    async def _post(self, calls: list[Call], num_pauses: int) -> None:
        """Send one batch and read its stream to the end; every call that it leaves open has failed.

        Consumes the stream's events. Waits for the server's next one; unblocked by it, or by the silence deadline.

        Args:
            num_pauses: pauses there had been when the batch was put together
        """
        if num_pauses != self._num_pauses:  # nothing may reach a server that is being emptied
            for call in calls:
                if call.closed:
                    call.sent.set()
                else:
                    self._enqueue(call)
            return
        left = dict(enumerate(calls))
        try:
            await self._bounded(calls, left, num_pauses)
        except DeadlineError as error:
            for call in left.values():
                call.put(error)
        except Exception as error:  # whatever it was, every caller that waits needs an answer
            reason = str(error) if isinstance(error, EngineError) else repr(error)
            kind = EngineLost if isinstance(error, EngineLost) else EngineError
            for call in left.values():
                call.fail(self._http.url, reason, kind)
        finally:
            for call in left.values():
                call.sent.set()

    async def _bounded(self, calls: list[Call], left: dict[int, Call], num_pauses: int) -> None:
        """Run `_converse` under the silence deadline.

        Args:
            calls: of the batch
            left: those that have not ended, by their index in the batch; `_converse` removes them as they end
            num_pauses: as of `_post`

        Raises:
            EngineError: the stream ended before all calls of `left` had.
            DeadlineError: the server was silent for too long.
        """
        what = f"{self._http.url}/generate, request {calls[0].request_id} and {len(calls) - 1} more"
        async with deadline(self._silence_seconds, "engine client", what) as silence:
            self._silences.append(silence)
            self.idle.clear()
            try:
                await self._converse(calls, left, silence, num_pauses)
            finally:
                self._silences.remove(silence)
                if not self._silences:
                    self.idle.set()
        if left:
            raise EngineError("the answer ended early")

    async def _converse(
        self, calls: list[Call], left: dict[int, Call], silence: asyncio.Timeout, num_pauses: int
    ) -> None:
        """Send the batch, and hand each event to its call until the server has sent all of them."""
        self._extend(silence)
        version = self.version
        body = self._batch(calls)
        async with self._http.stream("/generate", body) as events:
            for call in calls:
                call.sent.set()
            async for together in events:
                self._hear()
                for data in together:
                    if data == wire.DONE:
                        return
                    self._take(decode(data), left, num_pauses, version)

    def _take(self, chunk: wire.Chunk, left: dict[int, Call], num_pauses: int, version: int) -> None:
        """Hand one increment to its call, and ask for the rest of a call that a pause cut short.

        Args:
            chunk: of a call of `left`
            left: see `_bounded`
            num_pauses, version: when the batch was put together
        """
        if chunk.index not in left:
            raise EngineError(f"an increment is said to be of request {chunk.index}, which has ended or never was")
        call = left[chunk.index]
        cut_short = call.take(chunk, paused=num_pauses != self._num_pauses, swapped=version != self.version)
        if chunk.meta_info.finish_reason is not None:
            del left[chunk.index]
        if cut_short:
            self.recomputed_tokens += call.num_computed
            self._enqueue(call)

    def _batch(self, calls: list[Call]) -> wire.Generate:
        """Give each call a new id, and ask for what is left of it."""
        for call in calls:  # an abort ends every id that begins with its own, so none may be the beginning of another
            call.rid = f"{call.request_id}#{self._name}.{next(self._serials)};"
            call.received = 0
        rests = [call.continuation.rest() for call in calls]
        cache_keys = [str(self.version)] * len(calls)
        return wire.Generate(
            input_ids=[list(rest.input_ids) for rest in rests],
            rid=[call.rid for call in calls],
            sampling_params=[wire.sampling_of(rest.sampling) for rest in rests],
            stream=True,
            return_logprob=True,
            extra_key=cache_keys if self._keys_cache else None,
        )

    def _hear(self) -> None:
        """Move every silence deadline, because a server that sends anything is alive: other calls may wait in it."""
        if now() - self._last_heard > self._silence_seconds / 10:  # seldom, because there are many events
            self._last_heard = now()
            self._extend_all()

    def _extend_all(self) -> None:
        for silence in self._silences:
            self._extend(silence)

    def _extend(self, silence: asyncio.Timeout) -> None:
        """Move one silence deadline; while paused there is none. One that has passed just now stays so."""
        if silence.expired():
            return
        deadline_at = None if self._is_paused else now() + self._silence_seconds
        silence.reschedule(deadline_at)


def _batches(calls: Sequence[Call]) -> Iterator[list[Call]]:
    """Cut calls, in their order, into batches that the embedded server takes; nearly always one."""
    batch: list[Call] = []
    tokens = 0
    for call in calls:
        request = call.continuation.request
        size = len(request.input_ids) + call.continuation.num_sampled + len(request.sampling.stop_token_ids)
        if batch and (len(batch) == wire.MAX_REQUESTS or tokens + size > wire.MAX_TOKENS):
            yield batch
            batch = []
            tokens = 0
        batch.append(call)
        tokens += size
    yield batch
