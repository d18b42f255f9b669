"""Send the open calls of one server in batches, and read the streams that answer them. Torch-free.

open() ─► pending ─► one POST for all calls of an event-loop iteration ─► increments ─► each call
             ▲                                                                │
             └── cut short by a pause that aborts: input + what was sampled, the rest of the budget

Pending calls are not sent while paused, so callers see of a pause only a silence.
"""

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from arl.clock import deadline, now
from arl.engine.continuation import Continuation
from arl.engine.http.sglang_protocol import Piece, SGLangProtocol
from arl.errors import DeadlineError, EngineError, EngineLost, RunError, short_message
from arl.types import GenerateRequest, Increment


@dataclass(eq=False)
class Call:
    """Keep a request that is open at one server. It may be sent several times, because a pause may cut it short."""

    continuation: Continuation
    serial: int  # in order of arrival
    name: str = ""  # at the server; new each time it is sent, because a server may still hold the last one
    is_sent: bool = False  # the server knows it by this name
    is_cached: bool = False  # the server has computed tokens for it since it was last paused
    events: asyncio.Queue[Increment | RunError] = field(default_factory=asyncio.Queue)  # an error ends the call
    closed: bool = False  # by the caller

    @property
    def request_id(self) -> str:
        return self.continuation.request.request_id

    def fail(self, url: str, error: Exception) -> None:
        """End the call with an error that names the server and the request."""
        if not isinstance(error, DeadlineError):
            kind = EngineLost if isinstance(error, EngineLost) else EngineError
            reason = str(error) if isinstance(error, EngineError) else repr(error)
            error = kind(f"{url}: request {self.request_id}: {short_message(reason)}")
        self.events.put_nowait(error)

    def drop_cache(self) -> int:
        """Note that the server has no cache of it any more; return the number of tokens that it held."""
        request = self.continuation.request
        tokens = len(request.input_ids) + request.sampling.max_new_tokens - self.continuation.budget
        was_cached, self.is_cached = self.is_cached, False
        return tokens if was_cached else 0

    def take(self, piece: Piece, paused: bool, newest: int) -> bool:
        """Take one increment; return whether a pause cut the call short, so that the rest is to be asked for.

        Args:
            piece: of this call
            paused: there was a pause that aborts since the call was sent
            newest: version that the server was given

        Raises:
            EngineError: an abort that no pause explains, or a request that ended short of its budget. Or it does not
                say which version sampled a token, or names one that the server was never given.
        """
        self.is_cached = self.is_cached or bool(piece.token_ids)
        self.continuation.add(piece.token_ids)
        reason = None if piece.finish is None else self.continuation.finish(piece.finish)
        budget = self.continuation.budget
        if reason == "length" and budget > 0:
            raise EngineError(
                f"the server ended it {budget} tokens short of its budget: its context or its cache "
                "(--context-length, --max-total-tokens) is too small"
            )
        is_cut = reason == "abort"
        if piece.token_ids or not (reason is None or is_cut):
            versions = _last_versions(piece.versions, len(piece.token_ids))
            latest = max(versions, default=newest)
            if latest > newest:
                raise EngineError(f"version {latest} is said to have sampled a token, and {newest} is the newest")
            # SGLang takes the log of rounded probabilities, which may exceed 0.
            logprobs = tuple(min(logprob, 0.0) for logprob in piece.logprobs)
            increment = Increment(tuple(piece.token_ids), logprobs, versions, None if is_cut else reason)
            self.events.put_nowait(increment)
        if is_cut and not paused and not self.closed:
            raise EngineError(f"the server aborted it without being asked to: {piece.message}")
        return is_cut and not self.closed


def _last_versions(runs: Sequence[tuple[int, int]], count: int) -> tuple[int, ...]:
    """Return the versions of the last `count` tokens of runs of (version, tokens).

    Raises:
        EngineError: the runs do not cover the tokens.

    >>> _last_versions([(3, 4), (4, 1)], 3)
    (3, 3, 4)
    """
    versions: tuple[int, ...] = ()
    for version, length in reversed(runs):
        versions = (version,) * min(length, count - len(versions)) + versions
    if len(versions) < count:
        raise EngineError(f"the server does not say which version sampled {count - len(versions)} of {count} tokens")
    return versions


class BatchSender:
    """Send and read the calls of one server.

    Args:
        protocol: of the server
        silence_seconds: longest silence of a server that has open calls, while not paused
        keys_cache: name the version with each call, so that the server's prefix cache, which a swap keeps, never
            serves a prefix of other weights
        aborts: at a pause every call ends, and its rest is sent again; else they stay open
        version: that the server has loaded
    """

    def __init__(
        self, protocol: SGLangProtocol, silence_seconds: float, keys_cache: bool, aborts: bool, version: int
    ) -> None:
        self._protocol = protocol
        self._silence_seconds = silence_seconds
        self._keys_cache = keys_cache
        self._aborts = aborts
        self.version = version  # that the server has loaded
        self.newest_version = version  # that it was given, before it answers that it is loaded
        self.idle = asyncio.Event()  # no POST is in flight
        self.idle.set()
        self._pending: list[Call] = []
        self._is_scheduled = False  # _send_pending
        self._is_paused = False
        self._is_closed = False
        self._num_pauses = 0
        self._silences: list[asyncio.Timeout] = []  # one for each POST in flight
        self._last_heard = now()
        self._tasks: set[asyncio.Task[None]] = set()
        self._prefix = secrets.token_hex(4)  # of names, which are unique at a server that has several clients
        self._serials = itertools.count()

    def open(self, request: GenerateRequest) -> Call:
        """Open a call, which is sent with the others of this event-loop iteration."""
        call = Call(Continuation(request), next(self._serials))
        self._enqueue([call])
        return call

    def abandon(self, call: Call) -> None:
        """Take back a call whose caller has gone; have the server end it, if it knows of it, or else once it does."""
        call.closed = True
        if call in self._pending:
            self._pending.remove(call)
        elif call.is_sent and not self._is_closed:
            self._spawn(self._abort(call))

    def pause(self) -> None:
        """Send nothing more; what is in flight may be silent for as long as it likes."""
        self._num_pauses += 1
        self._is_paused = True
        self._move_silences()

    def resume(self) -> None:
        """Send again, first what the pause handed back."""
        self._is_paused = False
        self._move_silences()
        self._enqueue([])

    async def close(self) -> None:
        """Cancel what is in flight."""
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _enqueue(self, calls: Sequence[Call]) -> None:
        """Have calls sent, or what is left of them, once all tasks that are ready to run now have added to them."""
        self._pending += calls
        if self._pending and not self._is_scheduled and not self._is_paused:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._send_pending)

    def _send_pending(self) -> None:
        self._is_scheduled = False
        if self._pending and not self._is_paused and not self._is_closed:
            # The server serves in order of arrival, and a pause hands back waiting calls before running ones.
            calls = sorted(self._pending, key=lambda call: call.serial)
            self._pending = []
            self._spawn(self._post(calls, self._num_pauses))  # a pause may come before the task runs

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _abort(self, call: Call) -> None:
        with contextlib.suppress(EngineLost, DeadlineError):  # dead or hanging, it answers no other call either
            await self._protocol.abort(call.name)

    async def _post(self, calls: list[Call], num_pauses: int) -> None:
        """Send one batch and read its stream to the end; every call that it leaves open has failed.

        Consumes the stream's events. Waits for the server's next one; unblocked by it, or by the silence deadline.

        Args:
            num_pauses: pauses there had been when the batch was put together
        """
        if num_pauses != self._num_pauses:  # nothing may reach a server that is paused or being emptied
            self._enqueue([call for call in calls if not call.closed])
            return
        left = dict(enumerate(calls))
        url = self._protocol.url
        what = f"{url}/generate, request {calls[0].request_id} and {len(calls) - 1} more"
        try:
            async with deadline(self._silence_seconds, "engine client", what) as silence:
                await self._converse(calls, left, silence)
            if left:
                raise EngineError("the answer ended early")
        except Exception as error:  # whatever it was, every caller that waits needs an answer
            for call in left.values():
                call.fail(url, error)

    async def _converse(self, calls: list[Call], left: dict[int, Call], silence: asyncio.Timeout) -> None:
        """Send the batch, and hand each increment to its call until the server has sent all of them.

        Args:
            calls: of the batch
            left: those that have not ended, by their index in the batch; they are removed as they end
            silence: the deadline of this POST

        Raises:
            EngineError: an increment is of no open call, or cannot be.
        """
        num_pauses = self._num_pauses
        for call in calls:  # an abort ends every name that begins with its own, so none may begin another
            call.name = f"{call.request_id}#{self._prefix}.{next(self._serials)};"
            call.is_sent = False
        names = [call.name for call in calls]
        rests = [call.continuation.rest() for call in calls]
        cache_key = str(self.version) if self._keys_cache else None
        self._silences.append(silence)
        self.idle.clear()
        try:
            self._move_silences()
            async with self._protocol.generate(names, rests, cache_key) as answers:
                for call in calls:
                    call.is_sent = True
                    if call.closed:
                        self._spawn(self._abort(call))
                async for pieces in answers:
                    self._hear()
                    for piece in pieces:
                        self._take(piece, left, num_pauses)
        finally:
            self._silences.remove(silence)
            if not self._silences:
                self.idle.set()

    def _take(self, piece: Piece, left: dict[int, Call], num_pauses: int) -> None:
        """Hand one increment to its call, and ask for the rest of a call that a pause cut short.

        Args:
            left: see `_converse`
            num_pauses: when the batch was sent
        """
        if piece.index not in left:
            raise EngineError(f"an increment is said to be of request {piece.index}, which has ended or never was")
        call = left[piece.index]
        paused = self._aborts and num_pauses != self._num_pauses
        cut_short = call.take(piece, paused, newest=self.newest_version)
        if piece.finish is not None:
            del left[piece.index]
        if cut_short:
            self._enqueue([call])

    def _hear(self) -> None:
        """Move every silence deadline, because a server that sends anything is alive: other calls may wait in it."""
        if now() - self._last_heard > self._silence_seconds / 10:  # seldom, because there are many events
            self._last_heard = now()
            self._move_silences()

    def _move_silences(self) -> None:
        """Set every silence deadline anew; while paused there is none. One that has passed just now stays so."""
        deadline_at = None if self._is_paused else now() + self._silence_seconds
        for silence in self._silences:
            if not silence.expired():
                silence.reschedule(deadline_at)
