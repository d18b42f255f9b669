"""Generate with a Hugging Face causal LM by continuous batching, in process and without threads.

    submit ─► waiting ─► admit ─► one forward pass (every slot's next token + new prompts) ─► sample ─► Stream
                 ▲                                                                               │
                 └───────── retract: back in line with what was generated; the cache is dropped ─┘

`run` is the one loop. Every other method only changes the state that its next turn reads.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from itertools import islice
from typing import Literal, Self

import numpy as np
from transformers import PreTrainedModel

from arl.clock import in_thread, now
from arl.engine.base import Load, refuse_impossible, refuse_unscorable
from arl.engine.embedded.model_runner import ModelRunner
from arl.engine.embedded.request_rows import OpenRequest, Rows, Stream
from arl.engine.embedded.scoring import score_tokens
from arl.engine.meters import PartTimer, Stopwatch
from arl.errors import EngineError
from arl.models.prefix_tree import PrefixTree, how_many_fit, prefix_tree
from arl.sync.buckets import checksums, refuse_difference
from arl.sync.loading import load_state, read_weights, versioned
from arl.types import GenerateRequest, Increment, PauseParts, ScoreRequest, SwapReport, TokenScores, WeightUpdate

PREFILL_TOKENS = 8192  # of new prompts in one pass, beside the decoding slots; a shared token counts once


class EmbeddedEngine:
    """Generate in this process as an Engine; `async with EmbeddedEngine(model): …` runs its loop.

    Args:
        model: built on arl's attention (arl.models.load), in evaluation mode
        slots: most requests that are decoded together
        kv_policy: at a swap, rebuild the cache of open requests under the new weights, or keep it
        stream_interval: tokens between two increments of one request
        version: of the weights that the model holds now
        step_cost: seconds that a pass of (prefill tokens, decode tokens) takes in virtual time; the results of a pass
            take effect when these seconds are over. None: no time is added
        load_seconds: virtual seconds that a weight load takes; 0 adds no time
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        slots: int = 256,
        kv_policy: Literal["recompute", "keep"] = "recompute",
        stream_interval: int = 16,
        version: int = 0,
        step_cost: Callable[[int, int], float] | None = None,
        load_seconds: float = 0.0,
    ) -> None:
        config = model.config.get_text_config()
        self.model = model
        self.vocab_size: int = config.vocab_size
        self.context: int = config.max_position_embeddings
        self._slots = slots
        self._interval = stream_interval
        self._step_cost = step_cost
        self._load_seconds = load_seconds
        self._keeps_cache = kv_policy == "keep"
        self._runner = ModelRunner(model, slots)
        self._rows = Rows(slots, self.context)
        self._waiting: deque[OpenRequest] = deque()
        self._open: dict[str, OpenRequest] = {}
        self._version = version
        self._paused_since: float | None = None
        self._any_aborted = False
        self._recomputed_tokens = 0  # since the last load
        self._busy = Stopwatch()
        self._boundary = asyncio.Lock()  # held during a pass, and by methods that change state between two passes
        self._to_score: deque[tuple[ScoreRequest, asyncio.Future[TokenScores]]] = deque()
        self._scoring = asyncio.Lock()  # one prefill at a time
        self._wake = asyncio.Event()
        self._ended: EngineError | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.run(), name="embedded engine")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()

    @property
    def loaded_version(self) -> int:
        return self._version

    @property
    def busy_seconds(self) -> float:
        return self._busy.seconds

    @property
    def num_open(self) -> int:
        """Return the number of requests that wait or run."""
        return len(self._open)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
        """See Engine.generate."""
        stream = self.submit([request])
        try:
            while True:
                for _, event in await stream.take():
                    if isinstance(event, EngineError):
                        raise event
                    yield event
                    if event.finish_reason is not None:
                        return
        finally:
            self.leave(stream)

    async def score(self, request: ScoreRequest) -> TokenScores:
        """See ScoringEngine.score. What waits is scored together; the weights must not be replaced meanwhile."""
        refuse_unscorable(request, self.vocab_size, self.context)
        waits: asyncio.Future[TokenScores] = asyncio.get_running_loop().create_future()
        self._to_score.append((request, waits))
        async with self._scoring:
            while not waits.done():
                await self._score_some()
        return waits.result()

    async def _score_some(self) -> None:
        """Score the first requests that wait, as many as one prefill takes."""
        chosen = [self._to_score.popleft()]
        first, _ = chosen[0]
        num_tokens = len(first.token_ids)
        while self._to_score:
            request, _ = self._to_score[0]
            num_tokens += len(request.token_ids)
            is_alike = (request.temperature, request.top_k) == (first.temperature, first.top_k)
            if num_tokens > PREFILL_TOKENS or not is_alike:
                break
            chosen.append(self._to_score.popleft())
        try:
            if self._step_cost is not None:
                await asyncio.sleep(self._step_cost(num_tokens, 0))
            scores = await in_thread(score_tokens, self.model, [request for request, _ in chosen])
        except asyncio.CancelledError:  # of the one that asked; the others ask again
            self._to_score.extendleft(reversed(chosen))
            raise
        except Exception as error:  # each of them raises it
            for _, waits in chosen:
                if not waits.cancelled():
                    waits.set_exception(error)
            return
        for (_, waits), found in zip(chosen, scores, strict=True):
            if not waits.cancelled():
                waits.set_result(found)

    def submit(self, requests: Sequence[GenerateRequest]) -> Stream:
        """Open all of `requests`, or none.

        Raises:
            EngineError: one of them cannot be served or its id is open already, or the engine has ended.
        """
        if self._ended is not None:
            raise self._ended
        names: set[str] = set()
        for request in requests:
            name = request.request_id
            refuse_impossible(request, self.vocab_size, self.context)
            if name in self._open or name in names:
                raise EngineError(f"request {name}: this id is open already: ids must be unique")
            names.add(name)
        stream = Stream()
        for index, request in enumerate(requests):
            sequence = np.array(request.input_ids, np.int32)
            opened = OpenRequest(request, stream, index, sequence)
            stream.requests.append(opened)
            self._open[request.request_id] = opened
            self._waiting.append(opened)
        self._count_busy()
        self._wake.set()
        return stream

    def abort(self, request_id: str | None = None) -> None:
        """End a request with what it has, after the pass under way; None: end every open one. Others are ignored."""
        self._abort([opened for name, opened in self._open.items() if request_id in (None, name)])

    def leave(self, stream: Stream) -> None:
        """End what is open of a stream that nobody reads any more."""
        self._abort(stream.requests)

    def _abort(self, requests: Iterable[OpenRequest]) -> None:
        for opened in requests:
            if self._open.get(opened.request.request_id) is opened:  # it has not ended
                opened.aborted = True
                self._any_aborted = True
        if not self._boundary.locked():
            self._close_aborted()
        self._wake.set()

    async def pause(self) -> None:
        """Stop after the pass under way; what was generated is streamed. Idempotent.

        Open requests keep their cache, or it is dropped and rebuilt at resume, as kv_policy says.
        """
        async with self._boundary:
            if self._paused_since is None:
                self._paused_since = now()
                self._count_busy()
            rows = self._rows
            for row in range(rows.count):
                if rows.sent[row] < rows.length[row]:
                    rows.emit(row, None)
            if not self._keeps_cache:
                self.retract()

    async def resume(self) -> None:
        """See Engine.resume."""
        async with self._boundary:
            self._paused_since = None
            self._count_busy()
            self._wake.set()

    async def update_weights(self, update: WeightUpdate) -> SwapReport:
        """See Engine.update_weights.

        Raises:
            EngineError: the weights are older, incomplete or of another shape; the old ones stay in use.
        """
        start = now()
        timer = PartTimer()
        pauses_itself = self._paused_since is None
        with timer.part("drain"):
            await self.pause()
        paused_since = self._paused_since or start
        try:
            with timer.part("load"):
                await self.load(update)
        finally:
            if pauses_itself:
                await self.resume()
        parts = PauseParts(**timer.seconds)
        report = SwapReport(update.version, now() - paused_since, now() - start, self._recomputed_tokens, parts)
        self._recomputed_tokens = 0
        if update.checksums:
            refuse_difference("the engine", update, self.checksums())
        return report

    async def load(self, update: WeightUpdate) -> None:
        """Replace the weights between two passes; the cache stays as it is.

        Raises:
            EngineError: `update` is older than the loaded weights, incomplete, or of another shape.
        """
        async with self._boundary:
            if update.version < self._version:
                raise EngineError(f"version {update.version} is older than the loaded version {self._version}")
            state = read_weights(update.path, self.model) if update.state is None else update.state
            load_state(self.model, state, update.path or f"version {update.version}")
            if self._load_seconds:
                await asyncio.sleep(self._load_seconds)
            self._version = update.version

    def checksums(self) -> dict[str, str]:
        """Return the sha256 of each weight that versions replace, in the dtype of the model."""
        return checksums(versioned(self.model), self.model.dtype)

    async def report(self) -> Load:
        """See ReplicaEngine.report."""
        rows = self._rows
        cached = int(rows.length[: rows.count].sum())
        waiting = sum(len(opened.sequence) for opened in self._waiting)
        return Load(
            running=rows.count,
            waiting=len(self._waiting),
            slots=self._slots,
            tokens=cached + waiting,
            capacity=self._slots * self.context,
        )

    def release_cache(self) -> None:
        """Free the memory of the cache; the next pass allocates what it needs. Nothing may be open."""
        assert not self._open
        self._runner.clear_cache()

    async def run(self) -> None:
        """Generate until cancelled.

        Consumes submitted requests. Waits when it is idle or paused; unblocked by submit, abort or resume.
        """
        try:
            while True:
                self._wake.clear()
                async with self._boundary:
                    worked = await self._turn()
                if worked:
                    await asyncio.sleep(0)
                else:
                    await self._wake.wait()
        except Exception as error:
            self._end(EngineError(f"the engine failed: {error!r}"))
            raise
        finally:
            self._end(EngineError("the engine was closed"))

    def _end(self, error: EngineError) -> None:
        """Fail every open request with `error`, so that nobody waits for an engine that has ended."""
        self._ended = self._ended or error
        for opened in self._open.values():
            opened.stream.put(opened.index, self._ended)
        self._open.clear()
        self._count_busy()

    def _count_busy(self) -> None:
        self._busy.run(len(self._open) > 0 and self._paused_since is None)

    async def _turn(self) -> bool:
        """Make one pass, if there is work and no pause; return whether it made one."""
        self._close_aborted()
        has_work = self._rows.count > 0 or len(self._waiting) > 0
        if not has_work or self._paused_since is not None:
            return False
        decoded = self._rows.count
        prompts = self._admit()
        ids, logprobs = self._runner.forward(self._rows, decoded, prompts)
        if self._step_cost is not None:
            prefilled = 0 if prompts is None else len(prompts.token_ids)
            await asyncio.sleep(self._step_cost(prefilled, decoded))
        gone = self._rows.record(ids, logprobs, self._version, self._interval)
        self._remove(gone)
        return True

    def _admit(self) -> PrefixTree | None:
        """Fill free slots in order of arrival. Return the prompts of the new rows; None without new rows."""
        free_slots = self._slots - self._rows.count
        first = [opened.sequence for opened in islice(self._waiting, free_slots)]
        if not first:
            return None
        admitted = max(1, how_many_fit(first, PREFILL_TOKENS))  # at least one, however long it is
        sequences = first[:admitted]
        for _ in sequences:
            self._rows.add(self._waiting.popleft())
        return prefix_tree(sequences)

    def _remove(self, gone: np.ndarray) -> None:
        """Close the requests of the rows in mask `gone` (n,), and fill their slots with the last rows."""
        if not gone.any():
            return
        for row in np.flatnonzero(gone).tolist():
            opened = self._rows.opened[row]
            del self._open[opened.request.request_id]
        self._count_busy()
        source, target = self._rows.remove(gone)
        if len(source):
            longest = int(self._rows.length[target].max())
            self._runner.move(source, target, longest)

    def _close_aborted(self) -> None:
        """End the requests that were aborted since the last pass, waiting and running ones."""
        if not self._any_aborted:
            return
        self._any_aborted = False
        waiting = [opened for opened in self._waiting if opened.aborted]
        self._waiting = deque(opened for opened in self._waiting if not opened.aborted)
        for opened in waiting:
            opened.stream.put(opened.index, Increment((), (), (), "abort"))
            del self._open[opened.request.request_id]
        self._count_busy()
        gone = np.array([opened.aborted for opened in self._rows.opened], bool)
        for row in np.flatnonzero(gone).tolist():
            self._rows.emit(row, "abort")
        self._remove(gone)

    def retract(self) -> None:
        """Put every row back at the head of the line, as a longer prompt. It must be paused.

        The rows are sorted by their tokens, so that rows with equal prefixes are prefilled by one pass.
        """
        rows = self._rows
        self._recomputed_tokens += int(rows.length[: rows.count].sum())
        for row, opened in enumerate(rows.opened):
            opened.sequence = rows.tokens[row, : rows.length[row]].copy()
        ordered = sorted(rows.opened, key=lambda opened: opened.sequence.tobytes())
        self._waiting.extendleft(ordered)
        rows.remove(np.ones(rows.count, bool))
